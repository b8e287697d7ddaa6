"""A server of a real model: its description, default sampling, constrained answers and a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real_model import NAME
from real_texts import PROSE
from served import Served, text_of

PEOPLE = (
    ("Maria Lopez", "Lisbon"),
    ("John Smith", "London"),
    ("Anna Schmidt", "Berlin"),
    ("Pierre Martin", "Lyon"),
    ("Yuki Tanaka", "Osaka"),
    ("Olga Ivanova", "Riga"),
    ("Ahmed Hassan", "Cairo"),
    ("Priya Patel", "Mumbai"),
    ("Lucas Silva", "Recife"),
    ("Emma Nilsson", "Malmö"),
    ("Chen Wei", "Shanghai"),
    ("Kofi Mensah", "Accra"),
    ("Sofia Rossi", "Turin"),
    ("Liam Murphy", "Cork"),
    ("Zofia Nowak", "Gdansk"),
    ("Mateo Garcia", "Lima"),
    ("Fatima Ali", "Karachi"),
    ("Noah Brown", "Denver"),
    ("Ingrid Berg", "Oslo"),
    ("David Cohen", "Haifa"),
)
QUESTIONS = (
    "What is this text about?",
    "Name one place in it.",
    "Who is in it?",
    "What happens first?",
    "What happens last?",
    "Is it a poem?",
    "Give it a title.",
    "Thank you!",
)


def test_its_family_size_and_quantization_are_those_of_the_file(smollm2: Served) -> None:
    (listed,) = smollm2.http.get("/api/tags").json()["models"]
    assert listed["name"] == f"{NAME}:latest"
    details = listed["details"]
    assert (details["family"], details["parameter_size"]) == ("llama", "134.5M")
    assert (details["format"], details["quantization_level"]) == ("gguf", "Q4_1")
    shown = smollm2.http.post("/api/show", json={"model": NAME}).json()
    assert shown["model_info"]["llama.context_length"] == 8192


def test_it_is_sampled_as_by_llama_cpp_and_the_log_says_so(smollm2: Served) -> None:
    answer = smollm2.client.responses.create(model=NAME, input="Hi", max_output_tokens=16)
    assert (answer.temperature, answer.top_p) == (0.8, 0.95)
    assert "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05" in "".join(smollm2.log)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
TEXT = r'[^"\\]{1,40}'
JSON_FORMS: dict[str, dict[str, Any]] = {
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    },
    "regex": {"regex": f'\\{{"name": "{TEXT}", "age": [0-9]{{1,3}}, "city": "{TEXT}"\\}}'},
}


@pytest.mark.parametrize("form", JSON_FORMS)
def test_values_are_extracted_as_json(smollm2: Served, form: str) -> None:
    right = 0
    for index, (name, city) in enumerate(PEOPLE):
        age = 18 + 7 * index % 67
        text = f"Extract name, age and city as JSON: {name}, {age} years old, moved to {city} last year."
        answer = smollm2.client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": text}],
            temperature=0,
            max_tokens=80,
            extra_body=JSON_FORMS[form],
        )
        right += json.loads(text_of(answer))["age"] == age
    assert right >= 0.85 * len(PEOPLE)


def test_a_chat_is_computed_from_what_is_new_and_cached_answers_are_those_computed_anew(
    exact_smollm2: Served,
) -> None:
    messages: list[Any] = [{"role": "system", "content": f"Answer about this text.\n\n{PROSE[:4000]}"}]
    usages = []

    def ask(turns: list[Any], **fields: Any) -> Any:
        return exact_smollm2.client.chat.completions.create(
            model=NAME, messages=turns, temperature=0, max_tokens=16, extra_body=fields
        )

    asked: list[list[Any]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        asked.append([*messages])
        answer = ask(messages)
        usages.append(answer.usage)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    prompts = sum(usage.prompt_tokens for usage in usages[1:])
    assert sum(usage.prompt_tokens_details.cached_tokens for usage in usages[1:]) / prompts >= 0.97
    for turn in (0, 3, 7):
        anew = ask(asked[turn], cache_prompt=False)
        assert anew.usage.prompt_tokens_details.cached_tokens == 0
        assert anew.choices[0].message.content == messages[2 * turn + 2]["content"]
