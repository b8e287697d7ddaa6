"""Requests generated from the OpenAPI document: each is answered as the document says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from generated_requests import DocumentFuzz, shares
from served import PATIENT, Served, eventually, serve

BODIES = 210
MAX_BODIES = 600
SEED = 17


@pytest.fixture(scope="module")
def target(served_model: Path) -> Iterator[Served]:
    """A short context bounds the replies of requests without `max_tokens`."""
    with serve(served_model, "--max-model-len", "384", program=(PATIENT,)) as server:
        yield server


def test_every_answer_is_as_the_document_says(target: Served) -> None:
    fuzz = DocumentFuzz(target.url, SEED)
    fuzz.without_bodies(5)
    fuzz.with_bodies(BODIES)
    outcome = fuzz.outcome
    while not outcome.events and outcome.bodies < MAX_BODIES:
        fuzz.with_bodies(40, "/v1/chat/completions")
    assert fuzz.without_any == []
    assert not outcome.faults, "\n".join(f"{kind}\n{text}" for kind, text in outcome.faults.items())
    statuses = outcome.statuses()
    assert statuses[200] > BODIES / 50
    assert statuses[400] > BODIES / 10
    assert outcome.events > 0
    assert target.is_healthy
    fuzz.end_pins()
    eventually(lambda: target.is_quiet)
    assert "Traceback" not in "".join(target.log)


def test_bodies_are_divided_evenly_and_the_rest_goes_around() -> None:
    assert shares(210, 38, 0) == [6] * 20 + [5] * 18
    assert shares(20, 38, 20) == [1] * 2 + [0] * 18 + [1] * 18
    sent, first = [0] * 38, 0
    for count in (20, 20, 500, 7):
        sent = [done + more for done, more in zip(sent, shares(count, 38, first), strict=True)]
        first = (first + count) % 38
    assert sum(sent) == 547
    assert max(sent) - min(sent) == 1


def without_status(document: Any) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            del operation["responses"]["400"]


def with_other_members(document: Any) -> None:
    for name in ("OpenaiErrorResponse", "ChatCompletion", "ChatChunk"):
        document["components"]["schemas"][name]["required"].append("other")


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (without_status, ["400: UndefinedStatusCode"]),
        (
            with_other_members,
            ["400: JsonSchemaError", "200: JsonSchemaError", "200: AssertionError an event"],
        ),
    ],
)
def test_an_answer_that_is_not_in_the_document_is_a_fault(
    target: Served, change: Callable[[Any], None], faults: list[str]
) -> None:
    document = target.http.get("/openapi.json").json()
    document["paths"] = {"/v1/chat/completions": document["paths"]["/v1/chat/completions"]}
    change(document)
    fuzz = DocumentFuzz(target.url, SEED, document)
    while missing := [fault for fault in faults if not any(fault in each for each in fuzz.outcome.faults)]:
        assert fuzz.outcome.bodies < MAX_BODIES, missing
        fuzz.with_bodies(20)
