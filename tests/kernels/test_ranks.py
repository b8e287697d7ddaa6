"""Sums and concatenations over ranks, which are processes with shared memory."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from arbora.kernels.common.program import Program
from arbora.kernels.common.reused_memory import Blocks, ReusedMemory
from arbora.kernels.common.threads import recorded_calls
from arbora.kernels.ranks import RankMemory, gather, join_columns, sum_in_place
from hypothesis import given, settings
from hypothesis import strategies as some

T = TypeVar("T")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def in_ranks(count: int, work: Callable[[RankMemory], T]) -> list[T]:
    """Runs `work` in a thread for each rank; returns the results in order. What ranks share is a file, as
    between processes."""
    results: dict[int, T] = {}
    with tempfile.TemporaryFile() as file:
        memories = [RankMemory(file.fileno(), rank, count) for rank in range(count)]

        def run(memory: RankMemory) -> None:
            torch.set_num_threads(1)
            results[memory.rank] = work(memory)

        threads = [threading.Thread(target=run, args=(memory,)) for memory in memories]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return [results[rank] for rank in range(count)]


def add_in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


@settings(max_examples=25, deadline=None)
@given(
    count=some.integers(2, 4),
    shapes=some.lists(some.tuples(some.integers(1, 40), some.integers(1, 700)), min_size=1, max_size=5),
    dtype=some.sampled_from(DTYPES),
    seed=some.integers(0, 1000),
)
def test_all_ranks_get_the_same_bits_of_each_sum(
    count: int, shapes: list[tuple[int, int]], dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    parts = [[torch.randn(shape, generator=random).to(dtype) for shape in shapes] for _ in range(count)]
    expected = [add_in_order(of_ranks) for of_ranks in zip(*parts, strict=True)]

    def work(memory: RankMemory) -> list[torch.Tensor]:
        own = [part.clone() for part in parts[memory.rank]]
        for part in own:
            sum_in_place(memory, part)
        return own

    for sums in in_ranks(count, work):
        assert all(torch.equal(a, b) for a, b in zip(sums, expected, strict=True))


@settings(max_examples=15, deadline=None)
@given(
    rows=some.integers(1, 30),
    widths=some.lists(some.integers(1, 300), min_size=2, max_size=4),
    dtype=some.sampled_from(DTYPES),
)
def test_columns_of_all_ranks_are_joined(rows: int, widths: list[int], dtype: torch.dtype) -> None:
    parts = [torch.randn(rows, width).to(dtype) for width in widths]
    joined = in_ranks(len(widths), lambda memory: join_columns(memory, parts[memory.rank], widths))
    assert all(torch.equal(each, torch.cat(parts, dim=1)) for each in joined)


def test_parts_larger_than_a_slot_are_exchanged_in_pieces() -> None:
    parts = [torch.randn(5, 1_000_000) for _ in range(2)]
    widths = [1_000_000] * 2

    def work(memory: RankMemory) -> tuple[torch.Tensor, torch.Tensor]:
        joined = join_columns(memory, parts[memory.rank], widths)
        own = parts[memory.rank].clone()
        sum_in_place(memory, own)
        return joined, own

    for joined, total in in_ranks(2, work):
        assert torch.equal(joined, torch.cat(parts, dim=1)) and torch.equal(total, parts[0] + parts[1])


def test_values_are_gathered_without_rounding() -> None:
    gathered = in_ranks(3, lambda memory: gather(memory, [memory.rank, 2**53 - 1.0]).tolist())
    assert gathered == [[[rank, 2**53 - 1.0] for rank in range(3)]] * 3


CHILD = Path(__file__).parents[1] / "support" / "summing_rank.py"


def test_programs_of_several_processes_and_threads_sum_again_and_again() -> None:
    """Each process prints a hash of its sums, in which every step depends on the one before."""
    ranks = 3
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        children = [
            subprocess.Popen(
                [sys.executable, str(CHILD), str(file.fileno()), str(rank), str(ranks)],
                env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONSAFEPATH": "1"},
                pass_fds=[file.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        printed = [child.communicate(timeout=100)[0] for child in children]
    assert len(set(printed)) == 1 and printed[0].endswith("right\n"), printed


def test_a_program_with_a_sum_of_one_rank_keeps_its_tensor() -> None:
    with tempfile.TemporaryFile() as file:
        memory = RankMemory(file.fileno(), 0, 1)
        x = torch.arange(6.0).view(2, 3)
        with recorded_calls() as calls, ReusedMemory(Blocks()):
            joined = join_columns(memory, x, [3])
        for _ in range(3):
            Program(calls).run()
        assert torch.equal(joined, x)
