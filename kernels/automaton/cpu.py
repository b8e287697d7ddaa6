"""Stepping of pooled automata on the CPU, for numba."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..sampling.jit import compiled


def advance(
    states: torch.Tensor,
    tokens: torch.Tensor,
    spans: torch.Tensor,
    token_bytes: torch.Tensor,
    state_rows: torch.Tensor,
    class_maps: torch.Tensor,
    transitions: torch.Tensor,
) -> torch.Tensor:
    arrays = (t.numpy() for t in (tokens, spans, token_bytes, state_rows, class_maps, transitions))
    return torch.from_numpy(_advance(states.numpy(), *arrays))


@compiled
def _advance(
    states: NDArray[np.int32],
    tokens: NDArray[np.int32],
    spans: NDArray[np.int32],
    token_bytes: NDArray[np.uint8],
    state_rows: NDArray[np.int32],
    class_maps: NDArray[np.uint8],
    transitions: NDArray[np.int32],
) -> NDArray[np.int32]:
    after = states.copy()
    for row in range(len(states)):
        state = states[row]
        if state < 0:
            continue
        for at in range(spans[tokens[row], 0], spans[tokens[row], 1]):
            first, class_map = state_rows[state, 0], state_rows[state, 1]
            state = transitions[first + class_maps[class_map, token_bytes[at]]]
        after[row] = state
    return after
