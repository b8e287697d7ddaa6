"""What the compiler says about the products of few rows on a GPU, without one: instructions beside bytes.

    PYTHONSAFEPATH=1 python bench/lib/gpu_products.py

A turn of a kernel's loop multiplies some weights. The table has the clocks in which the four schedulers of a
multiprocessor issue the instructions of a program's turn, and the clocks in which its share of an H200's
bandwidth reads the turn's weights. If issuing takes less, memory limits the product. Needs Triton.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from aot_cases import AotCase, all_cases, programs_at_a_time

BANDWIDTH, PROCESSORS, CLOCK, SCHEDULERS = 4.8e12, 132, 1.83e9, 4
"""of an H200, by the data sheet, and the schedulers of a multiprocessor"""
ARCHITECTURE, WARP = 90, 32
PRODUCTS = (
    "few-rows-1-tile-4",
    "few-rows-4-tile-4",
    "few-rows-4-tile-8",
    "product-4-bits-128-rows-8",
    "product-4-bits-128-rows-8-offsets",
    "product-4-bits-32-rows-8",
    "product-4-bits-128-rows-16",
    "product-8-bits-128-rows-8",
    "product-fp8-128-rows-8",
)
"""cases of the tests"""


class Turn(NamedTuple):
    """One turn of a program's loop."""

    weights: int
    bytes: int
    """of the weights, with their scales and offsets"""

    @staticmethod
    def of(case: AotCase) -> Turn:
        sizes = {name: int(value or 0) for name, value in case.constants.items()}
        outputs = sizes["BLOCK_OUTPUTS"]
        if "BLOCK_WORDS" in sizes:
            return Turn(2 * sizes["BLOCK_WORDS"] * outputs, 4 * sizes["BLOCK_WORDS"] * outputs)
        stored = sizes["SLICE"] * sizes["STEPS"] * outputs
        weights = stored * 8 // sizes["BITS"]
        scale = 4 if sizes["FP8"] else 2 * (1 + sizes["OFFSETS"])
        return Turn(weights, stored + weights // sizes["GROUP"] * scale)


def print_products(results: Mapping[str, Mapping[str, Any]]) -> None:
    """results: by `NAME-sm90`, as `aot_compile` returns them, with the instructions of the loop"""
    cases = {case.name: case for case in all_cases()}
    print("| kernel | instructions of a weight | clocks to issue | clocks to read | registers | programs |")
    print("|---|---|---|---|---|---|")
    for name in PRODUCTS:
        case, result = cases[name], results[f"{name}-sm{ARCHITECTURE}"]
        turn, instructions = Turn.of(case), sum(result["loop"].values())
        issue = instructions * case.num_warps / SCHEDULERS
        read = turn.bytes / (BANDWIDTH / PROCESSORS / CLOCK)
        together = programs_at_a_time(case.num_warps, result["registers"], result["shared"], ARCHITECTURE)
        each = instructions * case.num_warps * WARP / turn.weights
        print(f"| {name} | {each:.1f} | {issue:.0f} | {read:.0f} | {result['registers']} | {together} |")


def main() -> None:
    from aot_compile import compile_and_measure

    cases = {case.name: case for case in all_cases()}
    print_products(
        {f"{name}-sm{ARCHITECTURE}": compile_and_measure(cases[name], ARCHITECTURE) for name in PRODUCTS}
    )


if __name__ == "__main__":
    main()
