"""Sums and concatenations over the ranks of a model, which are processes on one machine, through shared
memory.

Each rank calls the same functions with tensors of the same shapes, in the same order.
"""

from .cpu import gather, join_columns, sum_in_place
from .memory import RankMemory

__all__ = ["RankMemory", "gather", "join_columns", "sum_in_place"]
