"""A process that is one of several ranks, whose programs sum their tensors.

python summing_rank.py DESCRIPTOR RANK RANKS
"""

from __future__ import annotations

import hashlib
import sys

import torch
from arbora.kernels.common.program import Program
from arbora.kernels.common.reused_memory import Blocks, ReusedMemory
from arbora.kernels.common.threads import recorded_calls
from arbora.kernels.elementwise import silu_and_mul
from arbora.kernels.ranks import RankMemory, join_columns, sum_in_place

STEPS, RUNS = 20, 30


def main() -> None:
    descriptor, rank, ranks = map(int, sys.argv[1:])
    memory = RankMemory(descriptor, rank, ranks)
    x = torch.empty(3, 256)
    with recorded_calls() as calls, ReusedMemory(Blocks()):
        for _ in range(STEPS):
            half = silu_and_mul(x)
            whole = join_columns(memory, half, [128] * ranks)
            sum_in_place(memory, whole)
    program, digest, right = Program(calls), hashlib.sha256(), True
    for run in range(RUNS):
        x.copy_(torch.randn(3, 256, generator=torch.Generator().manual_seed(run * ranks + rank)))
        program.run()
        parts = [
            silu_and_mul(torch.randn(3, 256, generator=torch.Generator().manual_seed(run * ranks + each)))
            for each in range(ranks)
        ]
        joined = torch.cat(parts, dim=1)
        expected = joined.clone()
        for _ in range(ranks - 1):
            expected += joined
        right = right and torch.equal(whole, expected)
        digest.update(whole.numpy().tobytes())
    print(digest.hexdigest(), "right" if right else "wrong")


if __name__ == "__main__":
    main()
