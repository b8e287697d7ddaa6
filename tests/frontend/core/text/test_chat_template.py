"""Chat templates render as transformers renders them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.runtime.errors import ConfigError, RequestError
from chat_templates import CHATML, GEMMA, QWEN3, TEMPLATES
from tokenizers_for_tests import write_model_folder
from transformers import AutoTokenizer

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Today's <weather> & more",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
Message = dict[str, Any]
SYSTEM: Message = {"role": "system", "content": "Be brief.\n"}
USER: Message = {"role": "user", "content": 'Wie ist das Wetter in <Köln> & "Bonn"? '}
ANSWER = {"role": "assistant", "content": " Sunny.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSunny.", "reasoning_content": None}
REASONED: Message = {"role": "assistant", "content": "Sunny.", "reasoning": "It is July."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "a1b2c3d4e",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln"}},
        }
    ],
}
RESULT = {"role": "tool", "content": '{"sky": "blue"}', "tool_call_id": "a1b2c3d4e"}

CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "a question": ([USER], None),
    "a system message": ([SYSTEM, USER], None),
    "two turns": ([USER, ANSWER, USER], None),
    "reasoning in content": ([USER, THOUGHT], None),
    "reasoning apart": ([USER, REASONED, USER], None),
    "tools": ([USER], TOOLS),
    "a call and its result": ([USER, CALL, RESULT, ANSWER, USER], TOOLS),
    "content parts": ([PARTS], None),
}


@pytest.fixture(scope="module", params=list(TEMPLATES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model_folder(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param])
    return folder


def load(folder: Path) -> ChatTemplate:
    template = ChatTemplate.load(folder, Tokenizer.load(folder))
    assert template is not None
    return template


def rendered(template: ChatTemplate, *args: Any, **options: Any) -> str | None:
    """None if it is refused."""
    try:
        return template.render(*args, **options)
    except RequestError as error:
        assert error.status == 400 and error.param in ("messages", "continue_final_message")
        return None


def rendered_by_transformers(oracle: Any, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        return str(oracle.apply_chat_template(copy.deepcopy(messages), tokenize=False, **options))
    except Exception:
        return None


@pytest.mark.parametrize("generation_prompt", [True, False])
def test_every_template_renders_every_conversation_as_transformers_does(
    folder: Path, generation_prompt: bool
) -> None:
    template, oracle = load(folder), AutoTokenizer.from_pretrained(folder)
    agreed = 0
    for name, (messages, tools) in CONVERSATIONS.items():
        expected = rendered_by_transformers(
            oracle, messages, tools=tools, add_generation_prompt=generation_prompt
        )
        actual = rendered(template, messages, tools=tools, add_generation_prompt=generation_prompt)
        assert actual == expected, name
        agreed += expected is not None
    assert agreed >= 3


def test_extra_variables_reach_the_template_as_in_transformers(folder: Path) -> None:
    template, oracle = load(folder), AutoTokenizer.from_pretrained(folder)
    extra = {
        "enable_thinking": False,
        "persona": "pirate",
        "date_string": "1 Jan 2030",
        "documents": [{"title": "T", "text": "body"}],
    }
    expected = rendered_by_transformers(oracle, [USER], add_generation_prompt=True, **extra)
    assert template.render([USER], kwargs=extra) == expected


def test_a_final_message_is_continued_as_in_transformers(folder: Path) -> None:
    template, oracle = load(folder), AutoTokenizer.from_pretrained(folder)
    for final in ("It is ", "It is", " Well,\n"):
        messages = [USER, {"role": "assistant", "content": final}]
        expected = rendered_by_transformers(oracle, messages, continue_final_message=True)
        options = {"add_generation_prompt": False, "continue_final_message": True}
        assert rendered(template, messages, **options) == expected


def test_arguments_of_a_call_reach_the_template_as_an_object(folder: Path) -> None:
    template = load(folder)
    as_text = copy.deepcopy(CALL)
    as_text["tool_calls"][0]["function"]["arguments"] = '{"city": "Köln"}'
    options: dict[str, Any] = {"tools": TOOLS, "add_generation_prompt": False}
    assert rendered(template, [USER, as_text], **options) == rendered(template, [USER, CALL], **options)


def test_messages_are_not_changed_by_rendering(tmp_path: Path) -> None:
    (write_model_folder(tmp_path) / "chat_template.jinja").write_text(QWEN3)
    messages = [USER, REASONED, USER, CALL]
    before = copy.deepcopy(messages)
    load(tmp_path).render(messages, tools=TOOLS)
    assert messages == before


def test_a_templates_objection_to_the_messages_reaches_the_client(tmp_path: Path) -> None:
    (write_model_folder(tmp_path) / "chat_template.jinja").write_text(GEMMA)
    with pytest.raises(RequestError, match="System role not supported") as caught:
        load(tmp_path).render([SYSTEM, USER])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_continued_message_excludes_a_generation_prompt(tmp_path: Path) -> None:
    (write_model_folder(tmp_path) / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(RequestError, match="add_generation_prompt"):
        load(tmp_path).render([USER, ANSWER], continue_final_message=True)


def test_the_template_may_be_in_the_tokenizers_config(tmp_path: Path) -> None:
    template = load(write_model_folder(tmp_path, config={"chat_template": CHATML}))
    assert template.source() == CHATML


def test_requests_with_tools_use_the_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = load(write_model_folder(tmp_path, config={"chat_template": named}))
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=TOOLS) == "tools"


def test_further_templates_may_be_in_files(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load(folder).render([USER], tools=TOOLS) == "tools"


def test_a_model_may_have_no_template(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    assert ChatTemplate.load(folder, Tokenizer.load(folder)) is None


def test_a_template_of_the_command_line_replaces_all_of_the_model(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, config={"chat_template": "of the model"})
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    template = ChatTemplate.load(folder, Tokenizer.load(folder), replacement="given")
    assert template is not None
    assert template.render([USER]) == template.render([USER], tools=TOOLS) == "given"


def test_a_template_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="default"):
        load(write_model_folder(tmp_path, config={"chat_template": "{% if %}"}))


@pytest.mark.parametrize(
    "attempt",
    [
        "{{ messages.__class__.__mro__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_stays_in_its_sandbox(tmp_path: Path, attempt: str) -> None:
    template = load(write_model_folder(tmp_path, config={"chat_template": attempt}))
    with pytest.raises(RequestError):
        template.render([USER])


@pytest.mark.parametrize("levels", [700, 5_000])
def test_arguments_nested_too_deep_for_a_template_are_named(tmp_path: Path, levels: int) -> None:
    (write_model_folder(tmp_path) / "chat_template.jinja").write_text(QWEN3)
    function = {"name": "f", "arguments": '{"a":' * levels + "1" + "}" * levels}
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    with pytest.raises(RequestError, match="the arguments of their tool calls") as caught:
        load(tmp_path).render([USER, call])
    assert caught.value.param == "messages"


def test_messages_nested_too_deep_for_python_are_refused(tmp_path: Path) -> None:
    nested: dict[str, Any] = {}
    for _ in range(3000):
        nested = {"content": nested}
    template = load(write_model_folder(tmp_path, config={"chat_template": "{{ messages | tojson }}"}))
    with pytest.raises(RequestError):
        template.render([{"role": "user", **nested}])


def test_the_template_for_tools_may_lose_system_messages_where_the_other_does_not() -> None:
    sources = {"default": CHATML, "tool_use": "{{ messages[0].content }}{{ messages[-1].content }}"}
    template = ChatTemplate(sources, {}, frozenset())
    assert not template.support(with_tools=True).several_systems
    assert template.support(with_tools=False).several_systems
