"""An encoder of transformers, such as BERT, as a `Model`: it reads an input as a whole, without pages."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from ....kernels.linear import Linear
from ...errors import ConfigError
from ..interface.cache_spec import CacheSpec
from ..interface.input_batch import InputBatch
from ..interface.model import AdaptableProduct, Model
from ..ranks import Rank, refuse_parts
from ..weight_formats import Checkpoint, ChooseFormat, Projection, ProjectionLoader
from .architecture import WeightPlan, load_into, without_weights
from .attention_calls import use_attention
from .description import find_positions, find_readers, quiet, read_config, refusing
from .encoder_attention import NAME, FlatInputs, NotFlatError, run_flat
from .modules import LinearModule
from .split_model import GivenStates

PADDED_ROWS = 32
"""inputs of a padded batch, of a model whose attention is not ours"""
CHECKED_LENGTHS = (5, 9, 9)
TOLERANCE = 1e-3
"""largest difference of a checked hidden state, relative to the largest one, in float32"""


@dataclass(frozen=True)
class EncoderConfig:
    """A `ModelConfig` without layers that have pages."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_positions: int
    default_positions: int
    dtype: str | None
    weight_readers: tuple[str, ...]
    unused: tuple[str, ...] = ()

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(1, 1, 1, ())


@dataclass(frozen=True)
class EncoderArchitecture:
    """An `Architecture` of transformers."""

    config: EncoderConfig
    original: PreTrainedConfig
    classifies: bool
    needs_chunk_check: ClassVar = False

    @staticmethod
    def open(model: Path, classifies: bool) -> EncoderArchitecture:
        """Reads config.json. Raises ConfigError with the reason for a model that can't be served."""
        original = read_config(model)
        ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
        with refusing(model, original):
            with torch.device("meta"):
                built = _build(copy.deepcopy(original), torch.bfloat16, classifies, "eager")
            readers = find_readers(built, lambda: built(input_ids=ids))
            positions = find_positions(original) - _first_position(built)
        dtype = original.dtype
        config = EncoderConfig(
            vocab_size=original.vocab_size,
            hidden_size=original.hidden_size,
            intermediate_size=getattr(original, "intermediate_size", None) or 4 * original.hidden_size,
            max_positions=positions,
            default_positions=positions,
            dtype=str(dtype).removeprefix("torch.") if dtype else None,
            weight_readers=readers,
        )
        return EncoderArchitecture(config, original, classifies)

    @property
    def dtype(self) -> str | None:
        return self.config.dtype

    def check(self, checkpoint: Checkpoint, choose: ChooseFormat) -> Collection[str]:
        return WeightPlan(self._empty, self.config, checkpoint).check(checkpoint, choose)

    def projections(self, checkpoint: Checkpoint) -> Sequence[Projection]:
        return list(WeightPlan(self._empty, self.config, checkpoint).projections.values())

    def take_part(self, rank: Rank) -> EncoderConfig:
        refuse_parts(rank, f"{self.original.model_type} is computed by transformers")
        return self.config

    def check_options(self, device: torch.device, deterministic: bool) -> None:
        if deterministic:
            raise ConfigError(
                f"--deterministic: {self.original.model_type} is computed by transformers, whose results "
                "depend on the other rows of a step. Leave the option out."
            )

    def load(self, loader: ProjectionLoader, progress: Callable[[str], None]) -> Model:
        with without_weights(loader.device):
            model = _build(copy.deepcopy(self.original), loader.dtype, self.classifies)
        load_into(model, WeightPlan(model, self.config, loader.checkpoint), loader, progress)
        kind = EncoderClassifier if self.classifies else EncoderModel
        return kind(self.config, model, loader.dtype, loader.device)

    @cached_property
    def _empty(self) -> PreTrainedModel:
        with torch.device("meta"):
            return _build(copy.deepcopy(self.original), torch.bfloat16, self.classifies)


def _build(
    config: PreTrainedConfig, dtype: torch.dtype, classifies: bool, attention: str = NAME
) -> PreTrainedModel:
    kind = AutoModelForSequenceClassification if classifies else AutoModel
    with quiet():
        model: PreTrainedModel = kind.from_config(config, attn_implementation=attention, dtype=dtype)
    if not classifies and isinstance(getattr(model, "pooler", None), torch.nn.Module):
        model.pooler = None  # many checkpoints lack its weights
    return model.eval()


def _first_position(model: PreTrainedModel) -> int:
    """The position of an input's first token. RoBERTa's come after that of padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


class EncoderModel:
    """A `Model` whose layers are transformers' modules.

    All inputs of a step are one sequence without padding, if the attention of all layers goes through ours.
    Otherwise they are padded, in batches of similar lengths.
    """

    is_recordable = False

    def __init__(
        self,
        config: EncoderConfig,
        model: PreTrainedModel,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self._model, self._dtype, self._device = config, model, dtype, device
        self.progress: Callable[[], None] = lambda: None
        self._base: Any = model.base_model
        self._takes = set(inspect.signature(inspect.unwrap(self._base.forward)).parameters)
        self._first_position = _first_position(model)
        self._is_flat = self._can_be_flat()
        if not self._is_flat:
            use_attention(model, _plain_attention(model))
        divides = device.type == "cpu" and all(each.may_run_beside_others for each in self.products())
        self._parts = torch.get_num_threads() if divides else 1
        self._threads = ThreadPoolExecutor(self._parts, initializer=torch.set_num_threads, initargs=(1,))

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def products(self) -> list[Linear]:
        return [module.product for module in self._model.modules() if isinstance(module, LinearModule)]

    def set_context(self, positions: int) -> None:
        pass

    def cover(self, positions: int) -> None:
        pass

    def adaptable_products(self) -> list[AdaptableProduct]:
        return []

    def describe_positions(self) -> bytes:
        return b""

    def forward(
        self, batch: InputBatch, kvs: Sequence[torch.Tensor], arrive: Callable[[int], None] | None = None
    ) -> torch.Tensor:
        hidden = self.hidden(batch.tokens, batch.groups[0].attention.query_lengths.tolist(), batch.texts)
        return hidden if batch.outputs is None else hidden[batch.outputs]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("steps of a model that pools sample no tokens")

    def hidden(
        self, tokens: torch.Tensor, lengths: Sequence[int], texts: torch.Tensor | None
    ) -> torch.Tensor:
        """Hidden states [tokens, hidden] of whole inputs, one after the other. texts: see `InputBatch`.

        On a CPU each core computes a part of the inputs, as PyTorch divides small operations badly.
        """
        ends = np.cumsum(lengths)
        order = np.argsort(lengths, kind="stable")
        types = torch.zeros_like(tokens) if texts is None else texts

        @torch.inference_mode()
        def compute(part: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
            moved = np.concatenate([np.arange(ends[at] - lengths[at], ends[at]) for at in part])
            index = torch.from_numpy(moved).to(tokens.device)
            run = self._flat if self._is_flat else self._padded
            return index, run(tokens[index].long(), [lengths[at] for at in part], types[index].long())

        parts = [order[first :: self._parts] for first in range(min(self._parts, len(order)))]
        found = [compute(order)] if len(parts) == 1 else list(self._threads.map(compute, parts))
        hidden = found[0][1].new_empty(len(tokens), found[0][1].shape[1])
        for index, states in found:
            hidden[index] = states
        return hidden

    def _flat(self, tokens: torch.Tensor, lengths: Sequence[int], types: torch.Tensor) -> torch.Tensor:
        return self._run_flat(FlatInputs(lengths, self.progress), tokens, lengths, types)

    def _run_flat(
        self, inputs: FlatInputs, tokens: torch.Tensor, lengths: Sequence[int], types: torch.Tensor
    ) -> torch.Tensor:
        positions = torch.cat([torch.arange(length, device=tokens.device) for length in lengths])
        arguments = self._accepted(
            token_type_ids=types[None], position_ids=positions[None] + self._first_position
        )
        states: torch.Tensor = run_flat(inputs, self._base, input_ids=tokens[None], **arguments)[0][0]
        return states

    def _padded(self, tokens: torch.Tensor, lengths: Sequence[int], types: torch.Tensor) -> torch.Tensor:
        found = []
        each, each_type = tokens.split(list(lengths)), types.split(list(lengths))
        for start in range(0, len(lengths), PADDED_ROWS):
            part = slice(start, start + PADDED_ROWS)
            mask = pad_sequence([torch.ones_like(row) for row in each[part]], batch_first=True)
            padding = self._model.config.pad_token_id or 0
            arguments = self._accepted(token_type_ids=pad_sequence(each_type[part], batch_first=True))
            ids = pad_sequence(each[part], batch_first=True, padding_value=padding)
            states = self._base(input_ids=ids, attention_mask=mask, **arguments)[0]
            found.append(states[mask.bool()])
            self.progress()
        return torch.cat(found)

    def _accepted(self, **arguments: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: value for name, value in arguments.items() if name in self._takes}

    @torch.inference_mode()
    def _can_be_flat(self) -> bool:
        """Whether inputs that are computed as one sequence have the hidden states that each has alone."""
        inputs = FlatInputs(CHECKED_LENGTHS)
        if "position_ids" not in self._takes or self._differs(inputs, CHECKED_LENGTHS):
            return False
        longest = min(max(inputs.windows, default=0) + 2, self.config.max_positions)
        lengths = (*CHECKED_LENGTHS, longest)
        return bool(inputs.calls) and (not inputs.windows or not self._differs(FlatInputs(lengths), lengths))

    def _differs(self, inputs: FlatInputs, lengths: Sequence[int]) -> bool:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.config.vocab_size, (sum(lengths),), generator=generator).to(self._device)
        types = torch.zeros_like(tokens)
        try:
            flat = self._run_flat(inputs, tokens, lengths, types)
        except (NotFlatError, KeyError, IndexError, ValueError, RuntimeError, TypeError):
            return True
        use_attention(self._model, _plain_attention(self._model))
        plain = self._padded(tokens, lengths, types)
        use_attention(self._model, NAME)
        tolerance = TOLERANCE if self._dtype == torch.float32 else 100 * TOLERANCE
        return float((flat - plain).abs().max()) > tolerance * float(plain.abs().max())


class EncoderClassifier(EncoderModel):
    """A `ClassifyingModel`: an encoder with a head."""

    def classify(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Logits of the classes, float32 [inputs, classes], of the hidden states of whole inputs."""
        states = pad_sequence(hidden.split(list(lengths)), batch_first=True)
        mask = pad_sequence([states.new_ones(length) for length in lengths], batch_first=True).long()
        pooler = getattr(self._base, "pooler", None)
        given = GivenStates(self._base)
        given.hidden = states
        given.make_pooled = (
            None if pooler is None else lambda hidden: pooler(hidden)
        )  # PyTorch registers modules
        modules, name = self._model._modules, self._model.base_model_prefix
        modules[name] = given
        try:
            logits: torch.Tensor = self._model(inputs_embeds=states, attention_mask=mask)[0]
        finally:
            modules[name] = self._base
        return logits.float()


def _plain_attention(model: PreTrainedModel) -> str:
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
