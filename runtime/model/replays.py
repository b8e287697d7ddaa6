"""How parts of steps run as CUDA graphs or CPU programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from numpy import int32
from numpy.typing import NDArray

from ...kernels.sampling.batch import HostMask
from ...kernels.sampling.packed_results import PackedResults
from ..messages import StepPlan
from .input_batch import StepInputs
from .running_step import SampledRows

Forward = Callable[[StepInputs], torch.Tensor | None]
Sampling = Callable[[NDArray[int32], torch.Tensor, HostMask | None, int | None], PackedResults | None]
Whole = Callable[[StepPlan, StepInputs], SampledRows | None]
Next = Callable[[StepPlan], SampledRows | None]


@dataclass(frozen=True)
class Replays:
    """Functions that run recorded kernels. They return None for steps that no recording fits."""

    forward: Forward = lambda _: None
    """the forward pass; returns hidden states"""
    sampling: Sampling = lambda *_: None
    """samples for slots, hidden states, masks and alternatives; the slots record the tokens"""
    whole: Whole = lambda *_: None
    """a step in which every output token is sampled without a host mask"""
    next: Next = lambda _: None
    """a step that continues the step before; called for every plan"""
