"""Hostile grammars sent to a server with all its processes: no process ends, and others are served."""

from __future__ import annotations

import threading
from typing import Any

from hostile_grammars import (
    chat_body,
    intersected_patterns,
    lark_rule_chain,
    lark_terminal_chain,
    nested_repetitions,
    reference_chain,
)
from served import HELLO, Served, text_of

HEADERS = {"content-type": "application/json"}


def test_the_worst_grammars_are_refused_and_end_no_process(served: Served) -> None:
    before = served.children
    hostile = [
        reference_chain(2_500),
        lark_terminal_chain(20_000),
        lark_rule_chain(20_000),
        nested_repetitions(1),
        intersected_patterns(2),
    ]
    for grammar in hostile:
        answer = served.http.post("/v1/chat/completions", content=chat_body(grammar), headers=HEADERS)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"]
    assert served.children == before
    assert served.is_healthy


def test_others_are_served_while_hostile_grammars_are_compiled(served: Served) -> None:
    before = served.children

    def attack(number: int) -> None:
        body = chat_body(lark_rule_chain(20_000 + number))
        served.http.post("/v1/chat/completions", content=body, headers=HEADERS)

    attackers = [threading.Thread(target=attack, args=(number,)) for number in range(8)]
    for attacker in attackers:
        attacker.start()
    schema: Any = {"name": "answer", "schema": {"enum": ["yes", "no"]}}
    format: Any = {"type": "json_schema", "json_schema": schema}
    reply = served.client.chat.completions.create(
        model=served.model,
        messages=HELLO,
        response_format=format,
    )
    assert text_of(reply) in ('"yes"', '"no"')
    for attacker in attackers:
        attacker.join()
    assert served.children == before
