"""Sums of squares for norms."""

import numpy as np

from .lanes import fused, load_wide, repeated, sum_of
from .numba_tools import compiled, load
from .vectors import LANES


@compiled
def sum_of_squares(values, count):
    """The sum of the squares of `count` stored elements, in float32."""
    partial_sums = repeated(np.float32(0))
    vectors_end = count - count % LANES
    for i in range(0, vectors_end, LANES):
        value = load_wide(values, i)
        partial_sums = fused(value, value, partial_sums)
    squares = sum_of(partial_sums)
    for i in range(vectors_end, count):
        squares += load(values, i) * load(values, i)
    return squares
