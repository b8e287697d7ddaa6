"""`Engine.chat`: tools, several choices, lists of conversations, rendering."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arbora
import pytest
from arbora.frontend.engine.sampling import Rendering, TokenizeOptions
from tiny_checkpoint import write_tiny_checkpoint

HELLO = [{"role": "user", "content": "Hello, how are you today?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
CALL: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
TEMPLATE = (
    "{% if mood %}[{{ mood }}]{% endif %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[arbora.Engine]:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")
    use_template(model)
    options: Any = {"device": "cpu", "kv_memory": "4MiB", "max_waiting": 4, "debug": "invariants"}
    with arbora.Engine(str(model), **options) as engine:
        yield engine


def use_template(model: Path) -> None:
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))


def test_a_required_call_has_a_name_and_arguments_that_match(engine: arbora.Engine) -> None:
    completion = engine.chat(HELLO, **CALL)
    (call,) = completion.tool_calls
    assert (call.name, completion.text, completion.finish_reason) == ("weather", "", "tool_calls")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    assert call.id


def test_a_named_function_is_called(engine: arbora.Engine) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    (call,) = engine.chat(HELLO, tools=[WEATHER, TIME], tool_choice=choice).tool_calls
    assert (call.name, json.loads(call.arguments)) == ("time", {})


def test_the_parts_of_a_streamed_call_join_to_it(engine: arbora.Engine) -> None:
    whole = engine.chat(HELLO, seed=3, **CALL).tool_calls[0]
    parts = list(engine.stream_chat(HELLO, seed=3, **CALL))
    calls = [call for part in parts for call in part.tool_calls]
    assert {call.index for call in calls} == {0}
    assert [call.name for call in calls] == ["weather"] + [None] * (len(calls) - 1)
    assert "".join(call.arguments for call in calls) == whole.arguments
    assert parts[-1].finish_reason == "tool_calls"


def test_the_next_turn_has_the_call_and_its_result(engine: arbora.Engine) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
    }
    turns: list[dict[str, Any]] = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert engine.chat(turns, tools=[WEATHER], tool_choice="none", max_tokens=2).tool_calls == []
    rendered = (
        f"{json.dumps(WEATHER)}\n<|im_start|>user\nHello, how are you today?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )
    assert engine.tokenize(turns, tools=[WEATHER]) == engine.tokenize(rendered)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tool_choice": "required"}, "tool_choice asks for a call, but there are no tools"),
        (
            {"tools": [WEATHER], "tool_choice": "maybe"},
            "tool_choice is 'maybe', but must be one of none, auto",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name is missing"),
        ({"tools": "weather"}, 'tools is "weather", but must be a list'),
        ({"tools": [{**WEATHER, "type": "a\ud800"}]}, "tools has '\\ud800' at character 1"),
        (
            {"tools": [{**WEATHER, "function": {"name": "f", "parameters": {"a": object()}}}]},
            "tools can't be",
        ),
        ({**CALL, "regex": "a"}, "tool_choice asks for a call, which can't be used together with regex"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs is 5, but must be an object"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message and add_generation_prompt exclude each other",
        ),
        ({"n": 5}, "n is 5, but a request may have at most 4, as no more may wait at once"),
        ({"n": "two"}, 'n is "two", but must be an integer'),
    ],
)
def test_a_chat_that_can_not_be_served_says_why(engine: arbora.Engine, options: Any, expected: str) -> None:
    with pytest.raises(arbora.RequestError, match=re.escape(expected)):
        engine.chat(HELLO, **options)


def test_a_reply_continues_the_final_message(engine: arbora.Engine) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "I am fine"}]
    completion = engine.chat(begun, continue_final_message=True, max_tokens=3)
    tokens = engine.tokenize(begun, continue_final_message=True)
    assert list(completion.prompt_tokens) == tokens
    assert tokens[-1] != engine.tokenize(begun)[-1]
    assert tokens == engine.tokenize(begun, add_generation_prompt=False)[: len(tokens)]


def test_the_template_gets_the_variables(engine: arbora.Engine) -> None:
    prompt = engine.chat(HELLO, chat_template_kwargs={"mood": "glad"}, max_tokens=1).prompt_tokens
    assert list(prompt) == engine.tokenize("[glad]") + engine.tokenize(HELLO)


def test_several_choices_are_those_of_consecutive_seeds(engine: arbora.Engine) -> None:
    several = engine.chat(HELLO, n=3, seed=11, max_tokens=6)
    alone = [engine.chat(HELLO, seed=11 + choice, max_tokens=6) for choice in range(3)]
    assert [choice.text for choice in several.choices] == [completion.text for completion in alone]
    assert several.text == several.choices[0].text
    assert several.usage.completion_tokens == sum(len(choice.tokens) for choice in several.choices)
    parts = list(engine.stream_chat(HELLO, n=3, seed=11, max_tokens=6))
    for index, choice in enumerate(several.choices):
        own = [part for part in parts if part.choice == index]
        assert "".join(part.text for part in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason


def test_more_choices_than_may_wait_at_once_take_turns(engine: arbora.Engine) -> None:
    prompts = [f"the dog {number}" for number in range(9)]
    several = engine.generate(prompts, n=3, seed=1, max_tokens=3)
    assert [len(completion.choices) for completion in several] == [3] * 9
    assert several[8].choices[2].text == engine.generate(prompts[8], seed=3, max_tokens=3).text


def test_a_list_of_conversations_gives_the_replies_of_each_alone(engine: arbora.Engine) -> None:
    conversations = [[{"role": "user", "content": f"the cat {number}"}] for number in range(6)]
    together = engine.chat(conversations, seed=1, max_tokens=4)
    assert [each.text for each in together] == [
        engine.chat(each, seed=1, max_tokens=4).text for each in conversations
    ]
    wrong: Any = [HELLO, [{"role": "user"}]]
    with pytest.raises(arbora.RequestError, match=r"In messages\[1\]: messages\[0\].content is missing"):
        engine.chat(wrong)


def test_a_progress_bar_counts_the_prompts_of_a_list(
    engine: arbora.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.generate(["a", "b", "c"], max_tokens=1)
    assert capsys.readouterr().err == ""
    engine.generate(["a", "b", "c"], max_tokens=1, use_tqdm=True)
    assert "3/3" in capsys.readouterr().err
    engine.chat([HELLO, HELLO], max_tokens=1, use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


def test_streams_have_no_prompt_logprobs(engine: arbora.Engine) -> None:
    with pytest.raises(arbora.RequestError, match="prompt_logprobs is not available in streams"):
        engine.stream("Hello", prompt_logprobs=1)
    with pytest.raises(arbora.RequestError, match="prompt_logprobs is not available in streams"):
        engine.stream_chat(HELLO, prompt_logprobs=1)


def test_options_of_other_methods_are_type_errors(engine: arbora.Engine) -> None:
    wrong: Any = {"tools": [WEATHER]}
    with pytest.raises(TypeError, match="tools is an option of `chat` and `stream_chat` only"):
        engine.generate("Hello", **wrong)
    misspelt: Any = {"tool": [WEATHER]}
    with pytest.raises(TypeError, match=r"unknown sampling option 'tool'\. Did you mean tools\?"):
        engine.chat(HELLO, **misspelt)
    sampled: Any = {"temperature": 1}
    with pytest.raises(TypeError, match="unknown option 'temperature'"):
        engine.score("Hello", [" you"], **sampled)
    with pytest.raises(TypeError, match="unknown option 'temperature'"):
        engine.tokenize("Hello", **sampled)


@pytest.mark.parametrize("options", [arbora.ChatOptions, TokenizeOptions])
def test_the_options_are_all_described(options: Any) -> None:
    described = [
        name
        for each in (arbora.Sampling, Rendering, options)
        for name in re.findall(r"^    (\w+): ", each.__doc__ or "", re.MULTILINE)
    ]
    assert set(options.__annotations__) <= set(described)
