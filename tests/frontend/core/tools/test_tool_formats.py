"""A model's way to write tool calls is learned from its chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.core.tools.call_format import ToolFormat
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.tool_formats import detect_format
from chat_templates import CHATML, LLAMA3, MISTRAL, PYTHONIC, QWEN3, TEMPLATES
from tokenizers import AddedToken
from tokenizers_for_tests import tokenizer_of_kind, write_model_folder

COMPACT_HERMES = (
    QWEN3.replace('{"name": "\' + call.name', '{"name":"\' + call.name')
    .replace('", "arguments": \' }}', '","arguments":\' }}')
    .replace("else call.arguments | tojson", "else call.arguments | tojson(separators=(',', ':'))")
)
USER = {"role": "user", "content": "Hello"}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", type="object", properties={"city": {"type": "string"}}, required=["city"])


def load(folder: Path, source: str, special: tuple[str, ...] = ()) -> tuple[ChatTemplate, ToolFormat]:
    write_model_folder(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|eot_id|>", *special)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(source)
    template = ChatTemplate.load(folder, Tokenizer.load(folder))
    assert template is not None
    return template, detect_format(template)


def test_the_format_is_found_from_the_template(tmp_path: Path) -> None:
    for source, dialect in ((QWEN3, "hermes"), (LLAMA3, "llama_json"), (PYTHONIC, "pythonic")):
        assert load(tmp_path, source)[1] == FORMATS[dialect]
    assert load(tmp_path, MISTRAL, ("[TOOL_CALLS]",))[1] == FORMATS["mistral"]


@pytest.mark.parametrize("mark", ["[ARGS]", ""])
def test_newer_models_of_mistral_write_a_name_before_the_arguments(tmp_path: Path, mark: str) -> None:
    call = "[TOOL_CALLS]{{ c.function.name }}MARK{{ c.function.arguments | tojson }}"
    calls = "{% for c in m.tool_calls or [] %}" + call
    turns = (
        "{% for m in messages %}" + calls.replace("MARK", mark) + "{% endfor %}{{ m.content }}{% endfor %}"
    )
    source = "{% if tools %}{{ tools | tojson }}{% endif %}" + turns
    _, format = load(tmp_path, source, ("[TOOL_CALLS]", "[ARGS]"))
    assert format == FORMATS["mistral_named" if mark else "mistral_bare"]


def test_separators_are_those_of_the_template(tmp_path: Path) -> None:
    assert load(tmp_path, COMPACT_HERMES)[1].separators == (",", ":")


def test_marks_that_are_special_tokens_are_part_of_the_format(tmp_path: Path) -> None:
    assert load(tmp_path, QWEN3, ("<tool_call>", "</tool_call>"))[1] == FORMATS["hermes"]


def test_a_model_without_a_tool_format_gets_hermes(tmp_path: Path) -> None:
    assert detect_format(None) == FORMATS["hermes"]
    assert load(tmp_path, CHATML)[1] == FORMATS["hermes"]


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_every_template_has_a_format(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, TEMPLATES[name])[1].name in FORMATS


@pytest.mark.parametrize("source", [QWEN3, COMPACT_HERMES, LLAMA3], ids=["qwen3", "compact", "llama3"])
def test_an_imposed_call_is_written_as_the_template_will_write_it_on_the_next_turn(
    tmp_path: Path, source: str
) -> None:
    template, format = load(tmp_path, source)
    arguments = {"city": "Köln", "days": [1, 2], "where": {"x": None}}
    prompt = template.render([USER], tools=[WEATHER])
    call = {"type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    following = template.render(history, tools=[WEATHER])
    written = format.write([("weather", arguments)])
    assert following.startswith(prompt + written)


def test_special_tokens_that_mark_calls_are_to_be_shown() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    assert FORMATS["hermes"].shown_special(tokenizer) == frozenset()
