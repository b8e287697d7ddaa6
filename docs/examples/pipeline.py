"""A pipeline of three schemas: facts from a message, a plan from the facts, an answer from the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import arbora as ab
import msgspec
from example_options import connected, parser, print_cached_share

MESSAGE = "My parcel 4711 came broken on Monday. I paid 80 euros and want my money back before Friday. Ann"
PLAN_STEPS = 3


class Facts(TypedDict):
    customer: str
    wish: Literal["refund", "exchange", "information"]
    is_urgent: bool


@dataclass
class Step:
    team: Literal["returns", "payments", "support"]
    task: str


class Answer(msgspec.Struct):
    subject: str
    text: str


@ab.program
def handle(s: ab.State, message: str) -> None:
    s += ab.system("You handle the letters of a shop, in JSON.")
    s += ab.user(f"{message}\n\nWhat are the facts?")
    s += ab.assistant(ab.gen("facts", json_schema=Facts, max_tokens=60, complete_json=True))
    steps = 1 if s["facts"]["wish"] == "information" else PLAN_STEPS
    for number in range(steps):
        s += ab.user(f"What is step {number + 1} of {steps}?")
        s += ab.assistant(ab.gen(f"step {number}", json_schema=Step, max_tokens=60, complete_json=True))
    s += ab.user("Write to the customer.")
    s += ab.assistant(ab.gen("answer", json_schema=Answer, max_tokens=100, complete_json=True))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--message", default=MESSAGE)
    state = handle.run(connected(options).message)
    print(state["facts"])
    for number in range(PLAN_STEPS):
        if f"step {number}" in state:
            print(state[f"step {number}"])
    print(state["answer"])
    print_cached_share([state])
