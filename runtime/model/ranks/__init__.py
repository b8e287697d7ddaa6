"""The model processes of one replica, which are ranks: each has a part of every layer's heads and inner
numbers, and of the vocabulary. What they compute with whole rows is the same on all of them, to the bit."""

from .agreement import (
    RanksDifferError,
    agree_on_masks,
    agree_on_result,
    check_gpus,
    find_least,
    first_rank_first,
    wait_for_all,
)
from .ranks import (
    ONE_RANK,
    ProcessGroupRanks,
    Rank,
    Ranks,
    RanksOnHost,
    find_rank,
    open_ranks,
    refuse_parts,
)

__all__ = [
    "ONE_RANK",
    "ProcessGroupRanks",
    "Rank",
    "Ranks",
    "RanksDifferError",
    "RanksOnHost",
    "agree_on_masks",
    "agree_on_result",
    "check_gpus",
    "find_least",
    "find_rank",
    "first_rank_first",
    "open_ranks",
    "refuse_parts",
    "wait_for_all",
]
