"""The vocabulary as the scheduler sends it to the processes that build automata."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Spellings(NamedTuple):
    """The bytes of token i are `data[offsets[i]:offsets[i + 1]]`. The model may have more tokens."""

    offsets: NDArray[np.int32]  # [tokens + 1]: where each token's bytes begin
    data: NDArray[np.uint8]
    eos_tokens: tuple[int, ...]
    vocab_size: int
