"""instructor over OpenAI's client, in the modes that its users choose."""

from __future__ import annotations

import instructor
import pytest
from openai import OpenAI
from people import EXTRACT, MODEL, Person

MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"]
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": EXTRACT}], "max_retries": 0}


@pytest.mark.parametrize("mode", MODES)
def test_typed_reply(v1: str, mode: str) -> None:
    client = instructor.from_openai(OpenAI(base_url=v1, api_key="none"), mode=instructor.Mode[mode])
    person = client.chat.completions.create(response_model=Person, temperature=0, **ASKED)
    assert person.model_dump() == {"name": "Ada", "age": 36}


def test_partial_replies(v1: str) -> None:
    client = instructor.from_openai(OpenAI(base_url=v1, api_key="none"), mode=instructor.Mode.TOOLS)
    parts = list(client.chat.completions.create_partial(response_model=Person, temperature=0, **ASKED))
    assert parts[-1].model_dump() == {"name": "Ada", "age": 36}
