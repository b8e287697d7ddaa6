"""A tree of thoughts: each step of a solution has several continuations, and the best whole path wins."""

from __future__ import annotations

import arbora as ab
from example_options import connected, parser, print_cached_share

PROBLEM = "With the numbers 4, 9, 10 and 13, each used once, and + - * /, make 24."


@ab.program
def solve(s: ab.State, problem: str, width: int, depth: int) -> list[str]:
    """The thoughts of the best path."""
    s += ab.system("You solve problems step by step.")
    s += ab.user(problem)
    leaves = [s]
    for step in range(depth):
        leaves = [fork for leaf in leaves for fork in leaf.fork(width)]
        for number, leaf in enumerate(leaves):  # nothing waits here: the server gets the whole level at once
            leaf += ab.user(f"Say step {step + 1} in one sentence.")
            leaf += ab.assistant(ab.gen(f"step {step}", max_tokens=24, temperature=1.0, seed=number))
    for leaf in leaves:
        leaf += ab.user("How good is this path, from 1 to 5?")
        leaf += ab.assistant(ab.select("grade", ["1", "2", "3", "4", "5"]))
    best = max(leaves, key=lambda leaf: int(leaf["grade"]))
    return [best[f"step {step}"] for step in range(depth)]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--problem", default=PROBLEM)
    options.add_argument("--width", type=int, default=4, help="continuations of each thought")
    options.add_argument("--depth", type=int, default=3, help="thoughts of a path")
    values = connected(options)
    state = solve.run(values.problem, values.width, values.depth)
    for number, thought in enumerate(state.result, 1):
        print(f"{number}. {thought!r}")
    print_cached_share([state])
