"""A model directory whose files are checked, and from which the model is loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch

from ..byte_sizes import in_units
from ..config import ModelImpl, ServeConfig
from ..errors import ConfigError
from ..families import is_known
from ..logs import ProgressLine
from ..messages import Pooling
from ..sampling_params import SamplingDefaults
from .chunk_check import check_chunks
from .decoder import Decoder
from .decoder_config import DecoderConfig, load_decoder_config
from .devices import choose_dtype
from .generation_config import sampling_defaults
from .interface.cache_spec import CacheSpec
from .interface.model import Model, ModelConfig
from .kv_pool import context_length
from .pooler import Pooler
from .pooling import open_pooler
from .pooling_config import PoolingConfig, read_pooling
from .ranks import Rank, Ranks, first_rank_first
from .weight_formats import (
    Checkpoint,
    ChooseFormat,
    PackedCopy,
    Projection,
    ProjectionLoader,
    checkpoint_formats,
    open_packed_copy,
    open_quantized_copy,
)
from .weights import check_tensors, load_weights, projections

log = logging.getLogger(__name__)


class Architecture(Protocol):
    """What a model computes, and which tensors it needs: all that is known of it without its weights."""

    needs_chunk_check: ClassVar[bool]
    """whether the loaded model must be checked: its results may depend on how a prompt is cut into steps"""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> str | None:
        """the dtype in config.json"""
        ...

    def check_options(self, device: torch.device, deterministic: bool) -> None:
        """Raises ConfigError if the model can't be served with these options."""
        ...

    def take_part(self, rank: Rank) -> ModelConfig:
        """Returns the config of a rank's part. Raises ConfigError if the ranks can't divide the model."""
        ...

    def check(self, checkpoint: Checkpoint, choose: ChooseFormat) -> Collection[str]:
        """Raises ConfigError, naming the tensor, for a checkpoint that lacks one or has another shape.
        Returns the names of the tensors that the model may have."""
        ...

    def projections(self, checkpoint: Checkpoint) -> Sequence[Projection]:
        """The matrices that --quantize rounds."""
        ...

    def load(self, loader: ProjectionLoader, progress: Callable[[str], None]) -> Model:
        """Loads the model from a checkpoint that was checked. `progress` gets texts for a progress line."""
        ...


@dataclass(frozen=True)
class DecoderArchitecture:
    """A model that `Decoder` computes."""

    config: DecoderConfig
    pools: bool = False
    needs_chunk_check: ClassVar = False

    @property
    def dtype(self) -> str | None:
        return self.config.dtype

    def check_options(self, device: torch.device, deterministic: bool) -> None:
        pass

    def take_part(self, rank: Rank) -> DecoderConfig:
        return self.config.take_part(rank)

    def check(self, checkpoint: Checkpoint, choose: ChooseFormat) -> Collection[str]:
        return check_tensors(checkpoint, self.config, choose, has_others=self.pools)

    def projections(self, checkpoint: Checkpoint) -> Sequence[Projection]:
        return list(projections(self.config))

    def load(self, loader: ProjectionLoader, progress: Callable[[str], None]) -> Model:
        weights = load_weights(loader, self.config, progress)
        config = self.take_part(loader.rank)
        return Decoder(config, weights, loader.device, loader.dtype, loader.batch_invariant, loader.ranks)


@dataclass(frozen=True)
class ModelSource:
    architecture: Architecture
    config: ModelConfig
    """of this rank's part"""
    ranks: Ranks
    dtype: torch.dtype
    """dtype of activations"""
    context: int
    """maximal tokens of a request, unless memory is too small"""
    sampling: SamplingDefaults
    checkpoint: Checkpoint
    choose_format: ChooseFormat
    original: Path
    """the first file of the user's checkpoint; `checkpoint` may be its quantized copy"""
    method: str
    """how the weights are quantized: by `--quantize`, or in the user's checkpoint"""
    pooling: PoolingConfig | None = None
    """None: the model generates"""

    def open_packed_copy(self, config: ServeConfig, device: torch.device) -> PackedCopy:
        """The copy of the packed weights; one of nothing for a GPU or with `--packed-weights off`."""
        if device.type != "cpu" or config.packed_weights is None:
            return PackedCopy()
        kind = f"{type(self.architecture).__name__}, {'generates' if self.pooling is None else 'pools'}"
        rank = self.ranks.rank
        return open_packed_copy(
            config.packed_weights,
            config.model,
            self.original,
            self.checkpoint,
            self.dtype,
            config.deterministic,
            kind if rank.total == 1 else f"{kind}, rank {rank.number} of {rank.total}",
        )

    def load(self, device: torch.device, batch_invariant: bool, packed: PackedCopy) -> Model:
        begin, progress = time.monotonic(), ProgressLine()
        loader = ProjectionLoader(
            self.checkpoint, self.choose_format, self.dtype, device, batch_invariant, packed, self.ranks
        )
        model = self.architecture.load(loader, progress.show)
        progress.end()
        log.info("read the weights in %.1f s", time.monotonic() - begin)
        if self.architecture.needs_chunk_check:
            check_chunks(model, device)
        return model

    def open_pooler(self, model: Model, slots: int) -> tuple[Pooling | None, Pooler | None]:
        """The model's way of pooling, for the other processes and for the runner."""
        if self.pooling is None:
            return None, None
        return open_pooler(self.pooling, model, self.checkpoint, slots)

    def explain_bad_logits(self) -> None:
        """Raises ConfigError for a weight that is NaN or infinite; logs a warning if there is none."""
        used = self.architecture.check(self.checkpoint, self.choose_format)
        self.checkpoint.check_finite(sorted(set(used) & self.checkpoint.names))
        log.warning(
            "the logits of the test step are NaN or infinite, though all weights are finite: sums may be too "
            "large for %s. If requests fail, %s",
            str(self.dtype).removeprefix("torch."),
            "use another checkpoint" if self.dtype == torch.float32 else "try --dtype float32",
        )


def open_architecture(model: Path, impl: ModelImpl, pooling: PoolingConfig | None = None) -> Architecture:
    """Reads config.json. Raises ConfigError for a model that cannot be served. With `pooling`, it may be an
    encoder."""
    pools = pooling is not None
    if impl == "transformers":
        return _open_transformers(model, pooling)
    try:
        return DecoderArchitecture(load_decoder_config(model, pools), pools)
    except ConfigError as error:
        if impl == "native":
            raise
        native = error
    try:
        return _open_transformers(model, pooling)
    except ConfigError as error:
        raise native if is_known(model) else error from None


def _open_transformers(model: Path, pooling: PoolingConfig | None) -> Architecture:
    from .transformers_models.architecture import TransformersArchitecture  # takes seconds to import

    try:
        return TransformersArchitecture.open(model, pools=pooling is not None)
    except ConfigError:
        if pooling is None:
            raise
    from .transformers_models.encoder import EncoderArchitecture

    return EncoderArchitecture.open(model, classifies=bool(pooling.labels))


def _check_options(config: ServeConfig, spec: CacheSpec, *, pools: bool) -> None:
    """Raises ConfigError for adapters of a model that pools, and for page stores of one without pages."""
    if pools and config.adapter_places:
        option = "--lora" if config.loras else "--max-loras"
        raise ConfigError(
            f"{option}: the model pools, but only models that generate have adapters. Leave the option out."
        )
    stores: dict[str, object] = {"--disk-cache": config.disk_cache, "--remote-cache": config.remote_cache}
    why = "the model is an encoder, which has no KV cache"
    if spec.states and not spec.layers:
        stores["--host-cache"] = config.host_cache or None
        why = "all layers of this model are recurrent, and the page store keeps no states without pages"
    elif not spec.is_empty:
        return
    for option, value in stores.items():
        if value is not None:
            raise ConfigError(f"{option}: {why}. Leave the option out.")


def open_model(config: ServeConfig, device: torch.device, ranks: Ranks) -> ModelSource:
    """Reads the config and the headers of the weights; with --quantize, it also quantizes them. Raises
    ConfigError for a model that cannot be served."""
    pooling = read_pooling(config.model, config.runner)
    architecture = open_architecture(config.model, config.model_impl, pooling)
    architecture.check_options(device, config.deterministic)
    part = architecture.take_part(ranks.rank)
    _check_options(config, part.cache_spec, pools=pooling is not None)
    context = context_length(architecture.config, config.max_model_len)
    if pooling is not None and pooling.max_tokens is not None and config.max_model_len is None:
        context = min(context, pooling.max_tokens)
    checkpoint = Checkpoint(config.model)
    sampling = sampling_defaults(config.model, checkpoint.gguf)
    formats = checkpoint_formats(config.model, checkpoint)
    architecture.check(checkpoint, formats.choose)
    dtype = choose_dtype(config.dtype, architecture.dtype, checkpoint.float_dtype())
    log.info(
        "loading %s of %s weights onto %s, to compute in %s",
        in_units(sum(file.stat().st_size for file in checkpoint.files)),
        formats.method,
        device,
        str(dtype).removeprefix("torch."),
    )
    original, method = checkpoint.files[0], config.quantize or formats.method
    if config.quantize is not None:
        projections = architecture.projections(checkpoint)
        with first_rank_first(ranks):
            checkpoint, formats = open_quantized_copy(
                config.model, checkpoint, formats, projections, config.quantize, architecture.check
            )
    return ModelSource(
        architecture,
        part,
        ranks,
        dtype,
        context,
        sampling,
        checkpoint,
        formats.choose,
        original,
        method,
        pooling,
    )
