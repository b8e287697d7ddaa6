"""Time of the scheduler's choice of groups when the rows in decode change.

    python -P bench/groups.py

Best of 30 runs, in microseconds, for pages of 16 tokens, with the number of groups. Steps that decode the
same rows reuse the groups; a step with a short chunk, and the one after it, do not.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from itertools import count

import numpy as np
from arbora.runtime.messages import GroupCost
from arbora.runtime.scheduler.groups import order_and_group

PAGE_SIZE, RUNS = 16, 30
LEVELS = 3  # of a GPU: fixed_steps.LEVELS - 1
ROWS = (1, 64, 256, 1024)
Tables = list[list[int]]


def three_levels(rows: int) -> Tables:
    """1,024 tokens that all share, 1,024 that eight rows share, up to 256 of their own."""
    source, ids, tables = random.Random(0), count(), []
    system = [next(ids) for _ in range(64)]
    for row in range(rows):
        if row % 8 == 0:
            document = [next(ids) for _ in range(64)]
        tables.append(system + document + [next(ids) for _ in range(source.randint(4, 16))])
    source.shuffle(tables)
    return tables


def one_prefix(rows: int) -> Tables:
    return [[*range(128), *range(1000 + 16 * row, 1016 + 16 * row)] for row in range(rows)]


def nothing_shared(rows: int) -> Tables:
    return [[*range(144 * row, 144 * (row + 1))] for row in range(rows)]


def chain(rows: int) -> Tables:
    """Each row shares a page more than the one before: the slowest case."""
    return [[*range(1, row + 2)] for row in range(rows)]


WORKLOADS: dict[str, Callable[[int], Tables]] = {
    "three levels": three_levels,
    "one prefix": one_prefix,
    "nothing shared": nothing_shared,
    "chain": chain,
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{'':16}" + "".join(f"{f'{rows} rows':>18}" for rows in ROWS))
    for name, make in WORKLOADS.items():
        line = f"{name:16}"
        for rows in ROWS:
            tables = [np.array(pages, np.int32).tobytes() for pages in make(rows)]
            best = float("inf")
            for _ in range(RUNS):
                start = time.perf_counter()
                _, groups = order_and_group(tables, PAGE_SIZE, GroupCost(levels=LEVELS))
                best = min(best, time.perf_counter() - start)
            line += f"{f'{best * 1e6:.0f} ({len(groups)})':>18}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
