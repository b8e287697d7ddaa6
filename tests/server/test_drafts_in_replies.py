"""Replies with forced runs and stop strings in the midst of drafts are those of a server without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from arbora.runtime.config import BUILTIN_MODEL
from served import Served, eventually, serve

FIELDS = ("--deterministic", "--max-running", "4", "--max-model-len", "512")
PROMPT = "List the guests of the house as JSON, each with a name and a room."
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 3,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {
            "name_of_the_guest": {"type": "string", "maxLength": 5},
            "room_in_the_house": {"enum": ["kitchen garden", "kitchen table", "library"]},
        },
        "required": ["name_of_the_guest", "room_in_the_house"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Served]]:
    """One without drafts and one with them."""
    with (
        serve(BUILTIN_MODEL, *FIELDS, "--speculate", "off") as plain,
        serve(BUILTIN_MODEL, *FIELDS, "--speculate", "8") as drafting,
    ):
        yield [plain, drafting]


def ask(server: Served, prediction: str = "", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 150, **fields}
    body["prediction"] = {"type": "content", "content": prediction}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] <= answer["usage"]["completion_tokens"]
    return answer["choices"], answer["usage"]["completion_tokens"], details


def text_of(answer: Any) -> str:
    text: str = answer[0][0]["message"]["content"]
    return text


def test_forced_runs_agree_and_disagree_with_drafts(servers: list[Served]) -> None:
    plain, drafting = servers
    asked: list[dict[str, Any]] = [
        {"json_schema": SCHEMA, "temperature": 1.0, "seed": seed} for seed in range(6)
    ]
    expected = [ask(plain, **fields) for fields in asked]
    predicted = [text_of(answer).replace("kitchen", "kitchens") for answer in expected]
    with ThreadPoolExecutor(4) as pool:  # four at a time, each with what another one has said
        for texts in (predicted, predicted[::-1]):
            calls = [
                partial(ask, drafting, text, **fields) for text, fields in zip(texts, asked, strict=True)
            ]
            answers = list(pool.map(lambda call: call(), calls))
            assert [answer[:2] for answer in answers] == [answer[:2] for answer in expected]
    metrics = drafting.metrics()
    assert metrics["arbora_jump_forward_tokens_total"] > 0
    assert 0 < metrics["arbora_accepted_tokens_total"] < metrics["arbora_drafted_tokens_total"]


@pytest.mark.parametrize("place", [9, 20, 33])
def test_a_stop_string_in_a_draft_ends_the_reply(servers: list[Served], place: int) -> None:
    plain, drafting = servers
    whole = text_of(ask(plain, temperature=0, ignore_eos=True))
    fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "stop": [whole[place : place + 3]]}
    expected = ask(plain, **fields)
    assert expected[0][0]["finish_reason"] == "stop"
    for _ in range(2):  # the second time the reply is also drafted from
        answer = ask(drafting, whole, **fields)
        assert answer[:2] == expected[:2]
        assert answer[2]["accepted_prediction_tokens"] > 0
    eventually(lambda: drafting.is_quiet)
