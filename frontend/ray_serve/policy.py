"""Chooses the number of replicas by the time to first token and the time of decode steps.

Serve copies this module into its controller.
"""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class LatencyPolicy:
    """Holds two targets: a new prompt waits at most `ttft_s` for its first token, and a decode step takes at
    most `itl_s` (None: no target).

    Uncached work in seconds divides among more replicas, so its target gives their number. A step gets faster
    with fewer rows by an amount that is not known beforehand: its target adds one replica at a time. A
    replica is taken away only if the others would then keep both targets.
    """

    def __init__(self, ttft_s: float, itl_s: float | None = None) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        backlogs = [*metrics.get("backlog_s", {}).values()]
        steps = [*metrics.get("step_s", {}).values()]
        running, target = context.current_num_replicas, context.target_num_replicas
        wanted = self.choose(running, sum(backlogs), max(steps, default=0.0))
        # A replica that starts will take a part of the work. One that can't start may no longer be needed.
        return min(wanted, target) if running < target else wanted, {}

    def choose(self, running: int, backlog_s: float, step_s: float) -> int:
        """The number of replicas for a backlog of all of them together, and the step time of the slowest."""
        by_backlog = math.ceil(backlog_s / self._ttft_s)
        is_slow = self._itl_s is not None and step_s > self._itl_s
        if by_backlog > running or is_slow:
            return max(by_backlog, running + is_slow)
        fewer = running - 1
        if fewer < 1 or by_backlog > fewer:
            return running
        keeps_steps = self._itl_s is None or step_s * running / fewer <= self._itl_s
        return fewer if keeps_steps else running
