"""All CUDA graphs of a model: for sampling, and for forward passes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ...kernels.linear import Linear
from ..errors import ConfigError
from .capture import CaptureError, Captures, CudaCapture, lacked_memory
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .devices import free_memory
from .graphs import ForwardGraphs
from .replays import Replays
from .sampling_graphs import SamplingGraphs
from .slot_states import SlotStates

log = logging.getLogger(__name__)


class StepGraphs:
    """Sampling graphs need no pages, so they are captured first: the memory left after them decides the
    number of pages.

    A graph that cannot be captured is left out. Raises CaptureError if no step can run after that, and
    ConfigError if memory is too small for graphs, because steps would then fail too.
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
        rows = states.sampling.padding_slot
        self._device = states.sampling.last_tokens.device
        hidden = torch.zeros(rows, head.in_features, dtype=dtype, device=self._device)
        with self._capturing("sampling"):
            capture = CudaCapture()
            self._captures = Captures(capture, capture.measure)
            self._forward = ForwardGraphs(config, hidden, tables, states)
            self._sampling = SamplingGraphs(head, states, hidden, self._captures)

    def forward_bytes(self, decoder: Decoder, kvs: Sequence[torch.Tensor]) -> int:
        """Memory that the graphs still to be captured will take, as measured on one of them.

        decoder, kvs: may have fewer positions and pages than later
        """
        with self._capturing("one forward pass, to measure its memory"):
            return self._forward.bytes(decoder, kvs, self._captures)

    def replays(self, decoder: Decoder, kvs: Sequence[torch.Tensor]) -> Replays:
        """Captures the remaining graphs."""
        with self._capturing("forward passes"):
            self._forward.capture(decoder, kvs, self._captures)
        return Replays(self._forward.forward, self._sampling.sample)

    @contextmanager
    def _capturing(self, what: str) -> Iterator[None]:
        started, free = time.perf_counter(), free_memory(self._device)
        try:
            yield
        except CaptureError:
            raise
        except Exception as error:
            if lacked_memory(error):
                raise ConfigError(
                    f"There is no memory left for CUDA graphs: {error} Lower --kv-memory or --max-running, "
                    "or do without graphs: --enforce-eager."
                ) from error
            raise CaptureError(f"CUDA graphs can't be captured here: {error}") from error
        self._captures.log_left_out(what)
        taken, seconds = free - free_memory(self._device), time.perf_counter() - started
        log.info("captured CUDA graphs of %s in %.1f s; they take %d MB", what, seconds, taken >> 20)
