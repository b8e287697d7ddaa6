"""What is sent to servers that are not Arbora, and what is refused before it is sent."""

from __future__ import annotations

import json
from typing import Any

import arbora as ab
import pytest
from arbora.frontend.language.calls import MORE
from arbora.frontend.language.server_kinds import (
    ARBORA,
    LLAMA_CPP,
    OTHER,
    SGLANG,
    VLLM,
    ServerKind,
    UnsupportedError,
    fields_for,
)
from arbora.frontend.language.state import State
from scripted_http import Answer, scripted_http

OPENAI = {"max_tokens": 5, "stop": ["x"], "temperature": 0, "seed": 1, "top_p": 0.5, "logit_bias": {"1": 2}}


def fields(kind: ServerKind, **sampling: Any) -> dict[str, Any]:
    return fields_for(kind, sampling, is_chat=True)


@pytest.mark.parametrize("kind", [ARBORA, VLLM, SGLANG, LLAMA_CPP, OTHER], ids=lambda kind: kind.name)
def test_fields_of_openais_api_go_to_every_server(kind: ServerKind) -> None:
    assert fields(kind, **OPENAI) == OPENAI


@pytest.mark.parametrize("name", MORE)
def test_arbora_has_every_option_of_gen(name: str) -> None:
    assert fields(ARBORA, **{name: 1}) == {name: 1}


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            OTHER,
            "top_k",
            "this server is not known to have top_k: leave it out, or connect to Arbora or vLLM or",
        ),
        (OTHER, "cache_salt", "this server is not known to have cache_salt: leave it out"),
        (OTHER, "regex", "not known to have regex: use json_schema, or connect to Arbora or vLLM or SGLang"),
        (LLAMA_CPP, "repetition_penalty", "llama.cpp is not known to have repetition_penalty"),
        (
            SGLANG,
            "grammar",
            "not known to have grammar: use json_schema, or connect to Arbora or vLLM or llama",
        ),
        (
            VLLM,
            "complete_json",
            r"vLLM is not known to have complete_json: leave it out, or connect to Arbora\.",
        ),
    ],
)
def test_what_a_server_lacks_is_refused_by_name(kind: ServerKind, name: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        fields(kind, **{name: 1})


def test_constraints_take_each_servers_form() -> None:
    assert fields(VLLM, choices=["a"]) == {"structured_outputs": {"choice": ["a"]}}
    assert fields(ARBORA, choices=["a"]) == {"choice": ["a"]}
    assert fields(ARBORA, regex="a+") == {"regex": "a+"}, "so that its errors name the field as the user does"
    assert fields(SGLANG, regex="a+") == {"regex": "a+"}
    assert fields(LLAMA_CPP, grammar="root ::= x") == {"grammar": "root ::= x"}


@pytest.mark.parametrize("sampling", [{"choices": ["a"]}, {"json_schema": {"type": "object"}}], ids=str)
def test_other_servers_constrain_chats_alone(sampling: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"outside of a chat: put gen into arbora.assistant"):
        fields_for(OTHER, sampling, is_chat=False)


@pytest.mark.parametrize("name", ["tools", "tool_choice", "chat_template_kwargs"])
def test_options_of_a_chat_are_refused_outside_of_one(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{name} needs a chat"):
        fields_for(ARBORA, {name: []}, is_chat=False)


@ab.program
def judge(s: State) -> None:
    s += ab.user("Is it good?")
    s += ab.assistant(ab.gen("verdict", choices=["yes", "no"], max_tokens=1, stop="\n", temperature=0))


MODELS = Answer('{"data": [{"id": "m", "owned_by": "library"}]}')


def said(content: str) -> Answer:
    return Answer(json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}))


def test_choices_are_values_of_a_schema_on_other_servers() -> None:
    bodies: list[Any] = []
    with scripted_http(MODELS, said('{ "choice": "no" }'), bodies=bodies) as url:
        backend = ab.connect(url)
        state = judge.run(backend=backend)
        streamed = list(judge.stream(backend=backend))
    assert state["verdict"] == "no"
    assert state.messages()[-1]["content"] == "no"
    assert streamed == [("verdict", "no")]
    assert bodies[0] == bodies[1]
    schema = bodies[0].pop("response_format")["json_schema"]["schema"]
    assert schema["properties"]["choice"]["enum"] == ["yes", "no"]
    assert bodies[0].pop("max_tokens") > 1
    assert bodies[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Is it good?"}],
        "temperature": 0,
    }


@pytest.mark.parametrize(
    "choice", ["yes", "naïve", "😀", "\n" * 20], ids=["ASCII", "accent", "emoji", "escapes"]
)
def test_max_tokens_is_raised_to_what_a_choice_as_json_may_need(choice: str) -> None:
    longest = len(json.dumps({"choice": choice}, indent=2))
    assert fields(OTHER, choices=["", choice], max_tokens=1)["max_tokens"] >= longest
    assert fields(OTHER, choices=["", choice], max_tokens=500)["max_tokens"] == 500
    assert "max_tokens" not in fields(OTHER, choices=["", choice])


@pytest.mark.parametrize("content", ["no", '{"choice": "maybe"}', ""])
def test_a_server_that_does_not_enforce_the_choices_is_an_error(content: str) -> None:
    with (
        scripted_http(MODELS, said(content)) as url,
        pytest.raises(ab.ProgramError, match=r"does not enforce the schema in response_format"),
    ):
        judge.run(backend=ab.connect(url))


def test_select_is_refused_where_prompts_are_not_scored() -> None:
    @ab.program
    def choose(s: State) -> None:
        s += "It is " + ab.select("verdict", ["good", "bad"])

    with (
        scripted_http(MODELS) as url,
        pytest.raises(ab.ProgramError, match=r"score prompts, which select needs: connect to Arbora or vLLM"),
    ):
        choose.run(backend=ab.connect(url))
