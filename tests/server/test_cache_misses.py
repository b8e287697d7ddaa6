"""Why prompts miss the cache, as a running server explains it: a conversation for each cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import Served, serve, write_served_checkpoint

SYSTEM = "You are a careful assistant. Answer each question in one short sentence, and never guess. "
LONG = " ".join(f"Fact {number}: the cat number {number} sat on the mat." for number in range(12))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name} looks up the {name} of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "population", "height")
]
# Shortens the results of tools in all turns but the last.
FORGETS_RESULTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'tool' and not loop.last %}(a result){% else %}{{ message.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_served_checkpoint(tmp_path_factory.mktemp("model"))) as server:
        yield server


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def asked(served: Served, messages: list[Any], path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The explanation of a prompt, which is computed and replied to unless the path says otherwise."""
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "explain_cache": True, **fields}
    answer = served.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    explanation = found if path == "/cache/explain" else found["cache_explanation"]
    assert explanation["matched_tokens"] + sum(explanation["causes"].values()) == explanation["prompt_tokens"]
    return explanation


def test_a_first_prompt_is_new(served: Served) -> None:
    found = asked(served, [said("user", f"A first prompt. {LONG}")])
    print(found)
    assert found["causes"] == {"new": found["prompt_tokens"]}
    assert found["difference"] is None
