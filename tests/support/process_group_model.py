"""A model process on a CPU whose ranks are in a process group, as those on GPUs are."""

from __future__ import annotations

import os

import torch
from arbora.runtime.model import process
from arbora.runtime.model.ranks import ProcessGroupRanks, Rank, Ranks
from arbora.runtime.processes.child import RANK_FILE_VARIABLE


def open_ranks(rank: Rank, device: torch.device) -> Ranks:
    return ProcessGroupRanks(rank, int(os.environ[RANK_FILE_VARIABLE]), device)


if __name__ == "__main__":
    process.open_ranks = open_ranks  # type: ignore[attr-defined]
    process.main()
