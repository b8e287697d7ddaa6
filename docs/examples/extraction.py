"""Typed facts from many documents: a batch whose programs share the instructions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import arbora as ab
from example_options import connected, parser, print_cached_share

INSTRUCTIONS = """
You read invoices and return their facts as JSON. The fields are `customer`, the name of the company that
pays; `total`, the amount in whole euros without the currency; and `status`, which is "paid" if the invoice
says that the money has arrived, "open" if it is still due, and "overdue" if the date of payment has passed.
Use only what the invoice says.
"""
COMPANIES = ["Adler", "Birke", "Clement", "Dahlia", "Eibe"]
STATES = ["The amount has arrived.", "It is due in 14 days.", "It was due last month."]


@dataclass
class Invoice:
    customer: str
    total: int
    status: Literal["paid", "open", "overdue"]


@ab.program
def extract(s: ab.State, document: str) -> None:
    s += ab.system(INSTRUCTIONS)
    s += ab.user(document)
    s += ab.assistant(
        ab.gen("invoice", json_schema=Invoice, max_tokens=48, complete_json=True, temperature=0)
    )


def invoices(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        f"Invoice {number}. To {draw.choice(COMPANIES)} Ltd. {draw.randint(2, 40)} hours of work at "
        f"{draw.randint(50, 90)} euros each. {draw.choice(STATES)}"
        for number in range(count)
    ]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--documents", type=int, default=100)
    documents = invoices(connected(options).documents)
    states = extract.run_batch([{"document": document} for document in documents], progress=True)
    for document, state in list(zip(documents, states, strict=True))[:5]:
        print(f"{document}\n  {state['invoice']}")
    print_cached_share(states)
