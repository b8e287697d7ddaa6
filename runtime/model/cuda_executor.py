"""Steps on a GPU as CUDA graphs: one launch for a forward pass, and one for sampling."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ...kernels.common.drafts import Drafts
from ...kernels.sampling.batch import HostMask
from ...kernels.sampling.packed_results import PackedResults
from ..errors import ConfigError
from ..messages import StepPlan
from .capture import CaptureError, Captures, CudaCapture, lacked_memory
from .devices import free_memory
from .executor import DeviceState, EagerExecutor
from .forward_graphs import ForwardGraphs
from .input_batch import StepInputs
from .interface.model import Model
from .page_tables import PageTables
from .ranks import ONE_RANK, Rank
from .sampling_graphs import SamplingGraphs
from .slot_states import SlotStates
from .tiers import Restore

log = logging.getLogger(__name__)


class CudaExecutor:
    """Replays graphs. In order: `forward_bytes` → `capture` → steps.

    Sampling graphs need no pages, so they are captured first: the memory left after them decides the number
    of pages. A graph that cannot be captured is left out, unless there are several ranks. Raises CaptureError
    if no step can run after that, or for several ranks, and ConfigError if memory is too small for graphs,
    because steps would then fail too.
    """

    def __init__(
        self,
        model: Model,
        tables: PageTables,
        states: SlotStates,
        has_adapters: bool = False,
        rank: Rank = ONE_RANK.rank,
    ) -> None:
        self._model = model
        self._device = states.sampling.last_tokens.device
        size = states.sampling.padding_slot + states.max_drafts, model.config.hidden_size
        hidden = torch.zeros(size, dtype=model.dtype, device=self._device)
        with self._capturing("sampling"):
            capture = CudaCapture()
            self._captures = Captures(capture, capture.measure, needs_all=rank.total > 1)
            spec = model.config.cache_spec
            self._forward = ForwardGraphs(spec, hidden, tables, states, has_adapters)
            self._sampling = SamplingGraphs(model, states, hidden, self._captures)

    def forward_bytes(self, kvs: Sequence[torch.Tensor]) -> int:
        """Bytes that the graphs not yet captured will take, as measured on one of them.

        kvs: caches that may have fewer pages than later
        """
        with self._capturing("one forward pass, to measure its memory"):
            return self._forward.bytes(self._model, kvs, self._captures)

    def capture(self, device: DeviceState) -> None:
        """Captures the remaining graphs. Call it when the kernels are compiled."""
        self._eager = EagerExecutor(device)
        with self._capturing("forward passes"):
            self._forward.capture(device.model, device.kvs, self._captures)

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        return self._eager.build_inputs(plan, drafts)

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        hidden = None
        if restore is None or restore.arrive_at_once():
            hidden = self._forward.forward(inputs)
        return self._eager.run(inputs, restore) if hidden is None else hidden

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        results = self._sampling.sample(inputs, hidden, mask)
        return self._eager.sample(inputs, hidden, mask) if results is None else results

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
                    "or do without graphs: --debug eager."
                ) from error
            raise CaptureError(f"CUDA graphs can't be captured here: {error}") from error
        self._captures.log_left_out(what)
        taken, seconds = free - free_memory(self._device), time.perf_counter() - started
        log.info("captured CUDA graphs of %s in %.1f s; they take %d MB", what, seconds, taken >> 20)
