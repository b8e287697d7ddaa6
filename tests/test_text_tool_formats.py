"""A model's way to write tool calls is learned from its chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers
from arbora.frontend.text.chat_template import ChatTemplate
from arbora.frontend.text.tokenizer import Tokenizer
from arbora.frontend.text.tool_formats import ToolFormat, call_grammar, default_format, detect_format
from arbora.runtime.errors import RequestError
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
TREE = tool(
    "tree",
    type="object",
    properties={"root": {"$ref": "#/$defs/node"}, "self": {"$ref": "#"}},
    required=["root"],
    **{"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}},
)


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
    _, hermes = load(tmp_path, QWEN3)
    assert hermes == ToolFormat("hermes", "", "<tool_call>\n", "\n</tool_call>", (", ", ": "), "arguments")
    _, llama = load(tmp_path, LLAMA3)
    assert llama == ToolFormat("llama_json", "", "", "", (", ", ": "), "parameters")
    _, mistral = load(tmp_path, MISTRAL, ("[TOOL_CALLS]",))
    assert mistral == ToolFormat("mistral", "[TOOL_CALLS]", " [", "]", (", ", ": "), "arguments")
    _, pythonic = load(tmp_path, PYTHONIC)
    assert pythonic.name == "pythonic"


def test_separators_are_those_of_the_template(tmp_path: Path) -> None:
    assert load(tmp_path, COMPACT_HERMES)[1].separators == (",", ":")


def test_marks_that_are_special_tokens_stand_outside_the_grammar(tmp_path: Path) -> None:
    _, format = load(tmp_path, QWEN3, ("<tool_call>", "</tool_call>"))
    assert (format.opening, format.prefix, format.suffix) == ("<tool_call>", "\n", "\n")


def test_hermes_is_what_a_model_without_tools_of_its_own_gets(tmp_path: Path) -> None:
    assert detect_format(None) == default_format("hermes")
    assert load(tmp_path, CHATML)[1] == default_format("hermes")


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_every_template_has_a_format(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, TEMPLATES[name])[1].name in ("hermes", "llama_json", "mistral", "pythonic")


@pytest.mark.parametrize("source", [QWEN3, COMPACT_HERMES, LLAMA3], ids=["qwen3", "compact", "llama3"])
def test_an_imposed_call_is_written_as_the_template_will_write_it_on_the_next_turn(
    tmp_path: Path, source: str
) -> None:
    template, format = load(tmp_path, source)
    arguments = {"city": "Köln", "days": [1, 2], "where": {"x": None}}
    encoded = json.dumps(
        {"name": "weather", format.arguments_key: arguments},
        separators=format.separators,
        ensure_ascii=False,
    )
    prompt = template.render([USER], tools=[WEATHER]) + format.opening
    call = {"type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    following = template.render(history, tools=[WEATHER])
    assert following.startswith(prompt + format.prefix + encoded + format.suffix)


def accepts(schema: dict[str, Any], value: object) -> bool:
    jsonschema.Draft202012Validator.check_schema(schema)
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_a_required_call_may_be_any_of_the_tools_with_its_own_arguments() -> None:
    grammar = call_grammar(default_format("hermes"), [WEATHER, tool("f", type="object")], None)
    assert (grammar.kind, grammar.param, grammar.prefix) == ("json_schema", "tools", "<tool_call>\n")
    schema = json.loads(grammar.text)
    assert accepts(schema, {"name": "weather", "arguments": {"city": "Köln"}})
    assert accepts(schema, {"name": "f", "arguments": {"any": 1}})
    assert not accepts(schema, {"name": "weather", "arguments": {}})
    assert not accepts(schema, {"name": "g", "arguments": {}})
    assert not accepts(schema, {"name": "f", "arguments": {}, "more": 1})


def test_a_named_call_must_be_of_that_tool() -> None:
    schema = json.loads(call_grammar(default_format("llama_json"), [WEATHER, TREE], "weather").text)
    assert accepts(schema, {"name": "weather", "parameters": {"city": "Köln"}})
    assert not accepts(schema, {"name": "tree", "parameters": {"root": {}}})


def test_references_within_a_tools_parameters_still_point_where_they_did() -> None:
    schema = json.loads(call_grammar(default_format("hermes"), [WEATHER, TREE], None).text)
    assert accepts(schema, {"name": "tree", "arguments": {"root": {"next": {"next": {}}}}})
    assert not accepts(schema, {"name": "tree", "arguments": {"root": {"next": 1}}})
    assert not accepts(schema, {"name": "tree", "arguments": {"root": {}, "self": {}}})


def test_a_tool_without_parameters_takes_no_arguments() -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    schema = json.loads(call_grammar(default_format("hermes"), [bare], "now").text)
    assert accepts(schema, {"name": "now", "arguments": {}})
    assert not accepts(schema, {"name": "now", "arguments": {"a": 1}})


def test_arguments_are_an_object_even_if_the_schema_does_not_say_so() -> None:
    schema = json.loads(call_grammar(default_format("hermes"), [tool("f")], "f").text)
    assert accepts(schema, {"name": "f", "arguments": {"a": 1}})
    assert not accepts(schema, {"name": "f", "arguments": 1})


def test_a_name_that_no_tool_has_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match=r'"g".*weather, tree') as caught:
        call_grammar(default_format("hermes"), [WEATHER, TREE], "g")
    assert caught.value.param == "tool_choice"


def test_special_tokens_that_mark_calls_are_to_be_shown() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    assert default_format("hermes").shown_special(tokenizer) == frozenset()
