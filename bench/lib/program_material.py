"""The texts and the sizes of the workloads in programs.py, for both ways to write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

_TOPICS = """
memory time light water trees cities money music friends work travel bread winter books houses gardens rivers
letters schools roads
"""
TOPICS = _TOPICS.split()
POINTS = ["clear", "true", "complete", "useful"]
GRADES = [" poor", " fair", " good"]
MARKS = [" 1", " 2", " 3", " 4", " 5"]
COMPANIES = ["Adler", "Birke", "Clement", "Dahlia", "Eibe"]
STATES = ["paid", "open", "overdue"]
WIDTH = 4
THOUGHT_TOKENS = 24
ANSWER_TOKENS = 24
CHAIN_TOKENS = 48
JSON_TOKENS = 64
NUMBER = "[1-9][0-9]{0,2}"


class Invoice(msgspec.Struct, forbid_unknown_fields=True):
    """Every value is short, so that no reply is cut off."""

    customer: Literal["Adler", "Birke", "Clement", "Dahlia", "Eibe"]
    total: Annotated[int, msgspec.Meta(ge=0, le=99999)]
    status: Literal["paid", "open", "overdue"]


class Task(msgspec.Struct, forbid_unknown_fields=True):
    team: Literal["sales", "payments", "support"]
    days: Annotated[int, msgspec.Meta(ge=1, le=30)]


class Letter(msgspec.Struct, forbid_unknown_fields=True):
    tone: Literal["formal", "friendly"]
    is_urgent: bool


class Lookup(msgspec.Struct, forbid_unknown_fields=True):
    page: Annotated[int, msgspec.Meta(ge=1, le=99)]


class Material(NamedTuple):
    """Texts that begin with a label of their own, so that no other run has them in the cache."""

    documents: list[str]
    topics: list[str]
    depth: int  # of the tree of thought
    chains: int  # of reasoning, for each document
    instructions: str
    invoices: list[str]


def material(label: str, words: int, fraction: float) -> Material:
    """`words`: of each document. `fraction`: of the full sizes, from 0 to 1."""
    prose = re.sub(r"\s+", " ", (Path(__file__).parents[1] / "texts" / "prose.txt").read_text()).split(" ")

    def text(number: int) -> str:
        start = number * words % len(prose)
        repeated = (prose[start:] + prose * (words // len(prose) + 1))[:words]
        return f"{label}, text {number}. " + " ".join(repeated)

    def part(count: int) -> int:
        return max(1, round(count * fraction))

    return Material(
        documents=[text(number) for number in range(part(5))],
        topics=TOPICS[: part(20)],
        depth=part(3),
        chains=part(16),
        instructions=text(9),
        invoices=[
            f"\nInvoice {number} to {COMPANIES[number % 5]}: {17 * number + 40} euros, {STATES[number % 3]}."
            "\nJSON:"
            for number in range(part(100))
        ],
    )


def question(topic: str) -> str:
    return f"\nQuestion: What does it say about {topic}?\nAnswer:"


def step(number: int) -> str:
    return f"\nStep {number}:"


def point(name: str) -> str:
    return f"\nIs it {name}? Its grade is"


def verdict(grades: list[str]) -> str:
    return f"\nThe grades are{','.join(grades)}. The grade of the whole is"


def lookup(topic: str) -> str:
    return f"\nWhere is something about {topic}?\nLookup:"


def looked_up(call: Lookup) -> str:
    return f"\nPage {call.page} is about {TOPICS[call.page % len(TOPICS)]}.\nAnswer:"


def tasks(invoice: Invoice) -> list[str]:
    return ["\nTask:"] if invoice.status == "paid" else ["\nTask 1:", "\nTask 2:", "\nTask 3:"]


LETTER = "\nLetter:"
MARK = "\nThe mark of these steps is"
THOUGHTS = "\nThoughts:"
RESULT = "\nThe number is"
