"""A rank in a process group whose steps replay graphs. Without a GPU their launches are recorded and
interpreted.

    python graph_rank.py DESCRIPTOR RANK RANKS MODEL

The descriptor is that of a file which all ranks inherit. Prints the tokens of `generate`, and how many graphs
the steps replayed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import interpreted_triton  # noqa: F401
import logged_steps
import numpy as np
from arbora.runtime.model import kv_pool
from arbora.runtime.model.ranks import ProcessGroupRanks, Rank
from step_driver import FILTERED, StepDriver
from triton_device import DEVICE, triton_kernels

PROMPTS = [np.random.default_rng(length).integers(0, 250, length).tolist() for length in (3, 9, 21)]


def generate(driver: StepDriver) -> list[list[int]]:
    """The tokens of three requests, of which the second is sampled at random. The last prompt is larger than
    any graph."""
    tokens = []
    for slot, prompt in enumerate(PROMPTS):
        driver.start(slot, *((FILTERED,) if slot == 1 else ()))
        tokens.append([driver.prefill(slot, prompt)])
    for _ in range(4):
        for replies, token in zip(tokens, driver.decode(range(len(PROMPTS))), strict=True):
            replies.append(token)
    return tokens


def main() -> None:
    descriptor, number, total = map(int, sys.argv[1:4])
    kv_pool.in_segments = lambda device: False  # a cache that CUDA kernels can read
    log = logged_steps.Log()
    ranks = ProcessGroupRanks(Rank(number, total), descriptor, DEVICE)
    driver = logged_steps.with_graphs(Path(sys.argv[4]), log, ranks)
    with triton_kernels(), log.attached():
        tokens = generate(driver)
    print(json.dumps([tokens, log.events.count("graph")]))


if __name__ == "__main__":
    main()
