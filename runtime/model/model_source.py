"""A model directory whose files are checked, and from which the model is loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import torch

from ..byte_sizes import in_units
from ..config import ServeConfig
from ..logs import ProgressLine
from ..sampling_params import SamplingDefaults
from .decoder import Decoder
from .decoder_config import DecoderConfig, load_decoder_config
from .devices import choose_dtype
from .generation_config import sampling_defaults
from .kv_pool import context_length
from .model import Model
from .weight_formats import Checkpoint, ChooseFormat, checkpoint_formats, open_quantized_copy
from .weights import EMBEDDING, FINAL_NORM, expected_tensors, load_weights, projections

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    config: DecoderConfig
    dtype: torch.dtype
    """dtype of activations"""
    context: int
    """maximal tokens of a request, unless memory is too small"""
    sampling: SamplingDefaults
    checkpoint: Checkpoint
    choose_format: ChooseFormat

    def load(self, device: torch.device, batch_invariant: bool) -> Model:
        checkpoint, choose, dtype, progress = self.checkpoint, self.choose_format, self.dtype, ProgressLine()
        weights = load_weights(checkpoint, choose, self.config, dtype, device, batch_invariant, progress.show)
        progress.end()
        return Decoder(self.config, weights, device, batch_invariant)

    def explain_bad_logits(self) -> None:
        """Raises ConfigError for a weight that is NaN or infinite; logs a warning if there is none."""
        used = expected_tensors(self.config, self.choose_format)  # the checkpoint may lack some of them
        self.checkpoint.check_finite(sorted(self.checkpoint.names & used.keys()))
        log.warning(
            "the logits of the test step are NaN or infinite, though all weights are finite: sums may be too "
            "large for %s. If requests fail, %s",
            str(self.dtype).removeprefix("torch."),
            "use another checkpoint" if self.dtype == torch.float32 else "try --dtype float32",
        )


def open_model(config: ServeConfig, device: torch.device) -> ModelSource:
    """Reads the config and the headers of the weights; with --quantize, it also quantizes them. Raises
    ConfigError for a model that cannot be served."""
    shape = load_decoder_config(config.model)
    context = context_length(shape, config.max_model_len)
    checkpoint = Checkpoint(config.model)
    sampling = sampling_defaults(config.model, checkpoint.gguf)
    formats = checkpoint_formats(config.model, checkpoint)
    checkpoint.check(expected_tensors(shape, formats.choose))
    dtype = choose_dtype(config.dtype, shape.dtype, checkpoint.float_dtype([EMBEDDING, FINAL_NORM]))
    log.info(
        "loading %s of %s weights onto %s, to compute in %s",
        in_units(sum(file.stat().st_size for file in checkpoint.files)),
        formats.method,
        device,
        str(dtype).removeprefix("torch."),
    )
    if config.quantize is not None:
        checkpoint, formats = open_quantized_copy(
            config.model,
            checkpoint,
            formats,
            list(projections(shape)),
            config.quantize,
            partial(expected_tensors, shape),
        )
    return ModelSource(shape, dtype, context, sampling, checkpoint, formats.choose)
