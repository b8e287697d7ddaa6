"""All CUDA graphs of a model: for sampling, and for the forward pass of decode steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ...kernels.linear import Linear
from ..errors import ConfigError
from .capture import CaptureError, CudaCapture
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .devices import free_memory
from .graphs import DecodeGraphs
from .runner import Runner
from .sampling_graphs import SamplingGraphs
from .slot_states import SlotStates

log = logging.getLogger(__name__)


class StepGraphs:
    """Sampling graphs need no pages, so they are captured first: the memory left after them decides the
    number of pages.

    Raises CaptureError if graphs cannot be captured, and ConfigError if memory is too small for them, because
    steps would then fail too.
    """

    def __init__(
        self,
        config: DecoderConfig,
        head: Linear,
        states: SlotStates,
        dtype: torch.dtype,
        tables: torch.Tensor,
    ) -> None:
        """tables: the page tables of all slots, as in `PageTables`"""
        rows, self._device = states.sampling.padding_slot, states.sampling.last_tokens.device
        with self._capturing("sampling"):
            self._capture = CudaCapture()
            self._forward = DecodeGraphs(config, dtype, rows, tables)
            self._sampling = SamplingGraphs(head, states, rows, dtype, self._capture)
        self.forward_launches = self._forward.launches(config.layers)
        """launches in the graphs that are still to be captured"""

    def replay_in(self, runner: Runner, decoder: Decoder, kvs: Sequence[torch.Tensor]) -> None:
        """Captures the remaining graphs and makes `runner` use all."""
        with self._capturing("the forward pass"):
            self._forward.capture(decoder, kvs, self._capture)
        runner.replay_with(self._forward.forward, self._sampling.sample)

    @contextmanager
    def _capturing(self, what: str) -> Iterator[None]:
        started, free = time.perf_counter(), free_memory(self._device)
        try:
            yield
        except Exception as error:
            if _lacked_memory(error):
                raise ConfigError(
                    f"There is no memory left for CUDA graphs: {error} Lower --kv-memory or --max-running, "
                    "or do without graphs: --enforce-eager."
                ) from error
            raise CaptureError(f"CUDA graphs can't be captured here: {error}") from error
        taken, seconds = free - free_memory(self._device), time.perf_counter() - started
        log.info("captured CUDA graphs of %s in %.1f s; they take %d MB", what, seconds, taken >> 20)


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also in a library or the driver, or at the end of a capture."""
    if error is None:
        return False
    lacked = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
    return lacked or _lacked_memory(error.__context__)
