"""Tool calls are found in the model's own format, wherever the stream is split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.reply_parser import ContentDelta, ReplyParser, ToolCallDelta, ToolReading
from arbora.frontend.core.tools.tool_check import CallCheck, check_against
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "get_weather")]
FITS = check_against(TOOLS)
DIALECTS = ("hermes", "llama_json", "pythonic", "mistral", "mistral_named")


def new_parser(
    dialect: str, fits: CallCheck = FITS, enforced: Sequence[str] = (), **more: Any
) -> ReplyParser:
    return ReplyParser(tools=ToolReading(FORMATS[dialect], fits, frozenset(enforced), **more))


class Case(NamedTuple):
    """`expected` is content as text and calls as (name, arguments)."""

    dialect: str
    text: str
    expected: list[str | tuple[str, str]]


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name":"get_weather","arguments":{"city":"Köln </tool_call> }","n":[1, {}]}}'
LLAMA_F = '{"name": "f", "parameters": {"a": 1}}'

CASES = {
    "no call": Case("hermes", "Just text.\n", ["Just text.\n"]),
    "one call": Case("hermes", hermes(F), [("f", '{"a": 1}')]),
    "text and two calls": Case(
        "hermes",
        f"Let me see. \n{hermes(F)}\n{hermes(G)}",
        ["Let me see.", ("f", '{"a": 1}'), ("get_weather", '{"city":"Köln </tool_call> }","n":[1, {}]}')],
    ),
    "text after a call": Case("hermes", f"{hermes(F)}\nDone.", [("f", '{"a": 1}'), "Done."]),
    "almost a tag": Case("hermes", "a <tool_cal> <tool", ["a <tool_cal> <tool"]),
    "an unknown tool": Case(
        "hermes", hermes('{"name": "g", "arguments": {}}'), [hermes('{"name": "g", "arguments": {}}')]
    ),
    "broken JSON": Case("hermes", "a " + hermes('{"name": "f", "arguments": {') + " b", []),
    "NaN": Case("hermes", hermes('{"name": "f", "arguments": {"a": NaN}}'), []),
    "no JSON": Case("hermes", "The <tool_call> tag. </tool_call> ends.", []),
    "arguments in a string": Case(
        "hermes", hermes('{"name": "f", "arguments": "{\\"a\\": 1}"}'), [("f", '{"a": 1}')]
    ),
    "arguments that are a list": Case("hermes", hermes('{"name": "f", "arguments": [1]}'), []),
    "no arguments": Case("hermes", hermes('{"name": "f"}'), [("f", "{}")]),
    "a call broken off": Case("hermes", '<tool_call>\n{"name": "f", "argum', []),
    "a call without its end": Case("hermes", f"<tool_call>\n{F}", [("f", '{"a": 1}')]),
    "good after bad": Case("hermes", f"{hermes('x')}\n{hermes(F)}", [hermes("x"), ("f", '{"a": 1}')]),
    "arguments first": Case("hermes", hermes('{"arguments": {"a": 1}, "name": "f"}'), [("f", '{"a": 1}')]),
    "Llama": Case("llama_json", LLAMA_F, [("f", '{"a": 1}')]),
    "Llama, tagged": Case("llama_json", f"<|python_tag|>{LLAMA_F}", [("f", '{"a": 1}')]),
    "Llama, several": Case("llama_json", f"\n{LLAMA_F}; {LLAMA_F}", [("f", '{"a": 1}'), ("f", '{"a": 1}')]),
    "Llama, code": Case("llama_json", '<|python_tag|>print("{}")', []),
    "Llama, another object": Case("llama_json", '{"answer": {"n": 1}}\nDone. ', []),
    "Llama, JSON in the text": Case("llama_json", f"It is {LLAMA_F}", []),
    "Llama, a call and text": Case("llama_json", f"{LLAMA_F}\nDone {{}}", [("f", '{"a": 1}'), "Done {}"]),
    "Mistral": Case(
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name":"f","arguments": {}}]',
        [("f", '{"a": 1}'), ("f", "{}")],
    ),
    "Mistral, by name": Case(
        "mistral_named",
        'Hm. [TOOL_CALLS]f{"a": 1}[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{"city": "]"}',
        ["Hm.", ("f", '{"a": 1}'), ("get_weather", '{"city": "]"}')],
    ),
    "Mistral, one bad": Case("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, 1] x', []),
    "pythonic": Case(
        "pythonic",
        "[f(a=1, b='it\\'s ]', c=[True, None, -1.5]), get_weather(city=\"Köln\", o={'x': false})]",
        [
            ("f", '{"a": 1, "b": "it\'s ]", "c": [true, null, -1.5]}'),
            ("get_weather", '{"city": "Köln", "o": {"x": false}}'),
        ],
    ),
    "pythonic, tagged": Case("pythonic", "<|python_start|>[f()]<|python_end|>", [("f", "{}")]),
    "pythonic, tagged, then text": Case(
        "pythonic", "Hi <|python_start|>[f()]<|python_end|> ok", ["Hi", ("f", "{}"), "ok"]
    ),
    "pythonic, a plain list": Case("pythonic", "[1, 2] is a list", []),
    "pythonic, no literal": Case("pythonic", "[f(a=g())] x", []),
    "pythonic, positional": Case("pythonic", "[f(1)]", []),
}


def parse(parser: ReplyParser, parts: list[str], cut: bool = False) -> list[str | tuple[str, str]]:
    found: list[str | tuple[str, str]] = []
    for index, part in enumerate(parts):
        final = index == len(parts) - 1
        for delta in parser.push(part, final, cut=cut and final):
            match delta, found[-1:]:
                case ContentDelta(text), [str(before)]:
                    found[-1] = before + text
                case ContentDelta(text), _:
                    found.append(text)
                case ToolCallDelta(_, None, None, fragment), [(name, arguments)]:
                    found[-1] = (name, arguments + fragment)
                case ToolCallDelta(number, str(), str(name), fragment), _:
                    assert number == sum(isinstance(item, tuple) for item in found)
                    found.append((name, fragment))
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_calls_and_content_are_found_wherever_the_stream_is_split(name: str) -> None:
    """Nothing expected: all of it is content."""
    dialect, text, expected = CASES[name]
    for split in range(len(text) + 1):
        parser = new_parser(dialect)
        assert parse(parser, [text[:split], text[split:]]) == (expected or [text])
    for size in (1, 2, 3, 7):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert parse(new_parser(dialect), parts) == (expected or [text])


TAGS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[TOOL_CALLS]")
CALLS = (F, LLAMA_F, f"[{F}]", "[f(a=1)]", 'f{"x": 1}', "f[ARGS]{}")
OTHERS = ("<tool_", "[", "]", "{", "}", '"', "'", "\\", " ", "\n", ";", ",", '{"x": 1}', "text")
FRAGMENTS = TAGS + CALLS + OTHERS


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=80, deadline=None)
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=10), data=st.data())
def test_calls_found_in_a_text_do_not_depend_on_how_it_is_split(
    dialect: str, fragments: list[str], data: st.DataObject
) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(new_parser(dialect), [text])
    assert parse(new_parser(dialect), parts) == whole
    assert parse(new_parser(dialect), [*text, ""]) == whole
    if not any(isinstance(item, tuple) for item in whole):
        assert "".join(map(str, whole)) == text


def test_text_that_begins_no_call_is_sent_at_once() -> None:
    parser = new_parser("hermes")
    assert parser.push("Let me see", False) == [ContentDelta("Let me see")]
    assert parser.push(" <tool_", False) == []
    assert parser.push("bar>", False) == [ContentDelta(" <tool_bar>")]


def test_ids_fit_what_the_models_templates_accept() -> None:
    for dialect, text in (("hermes", hermes(F)), ("mistral", f"[TOOL_CALLS] [{F}]")):
        [delta] = new_parser(dialect).push(text, True)
        assert isinstance(delta, ToolCallDelta) and delta.id is not None
        assert delta.id.startswith("call_") if dialect == "hermes" else len(delta.id) == 9


LIVE: dict[str, tuple[str, list[str | tuple[str, str]]]] = {
    "hermes": (
        f"Let me see.{hermes(F)}\n{hermes(F)}",
        ["Let me see.", ("f", '{"a": 1}'), ("f", '{"a": 1}')],
    ),
    "llama_json": (LLAMA_F, [("f", '{"a": 1}')]),
    "mistral": (f"Hm. [TOOL_CALLS] [{F}, {F}]", ["Hm.", ("f", '{"a": 1}'), ("f", '{"a": 1}')]),
    "mistral_named": ('[TOOL_CALLS]f[ARGS]{"a": "]"}', [("f", '{"a": "]"}')]),
    "pythonic": (
        '[f(a=1, b="),\\"", c={"d": [1, {}]}), get_weather()]',
        [("f", '{"a": 1, "b": "),\\"", "c": {"d": [1, {}]}}'), ("get_weather", "{}")],
    ),
}


def live(dialect: str) -> ReplyParser:
    return new_parser(dialect, FITS, ("f", "get_weather"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_calls_of_enforced_tools_stream_wherever_the_text_is_split(dialect: str) -> None:
    text, expected = LIVE[dialect]
    for split in range(len(text) + 1):
        assert parse(live(dialect), [text[:split], text[split:]]) == expected
    parser = live(dialect)
    streamed = [delta for character in text for delta in parser.push(character, False)]
    assert sum(isinstance(delta, ToolCallDelta) and delta.name is None for delta in streamed) > 6


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dialect == "hermes"])
def test_an_enforced_tool_changes_nothing_of_what_is_written_in_another_way(name: str) -> None:
    _, text, expected = CASES[name]
    if F not in text and "argum" not in text:
        assert parse(live("hermes"), [*text]) == (expected or [text])


def test_an_enforced_call_cut_short_in_its_arguments_keeps_its_beginning() -> None:
    assert parse(live("llama_json"), ['{"name": "f", "parameters": {"a', '": 1']) == [("f", '{"a": 1')]


def test_an_enforced_call_cut_short_after_its_arguments_has_no_text() -> None:
    assert parse(live("hermes"), [f"<tool_call>\n{F}\n</tool_", ""]) == [("f", '{"a": 1}')]


def test_a_call_that_ends_before_its_arguments_is_content() -> None:
    assert parse(live("hermes"), ["<tool_call>\n", '{"name": "f"']) == ['<tool_call>\n{"name": "f"']


NAMES = ("f", "get_weather")
CUT: list[tuple[str, str, list[str | tuple[str, str]]]] = [
    ("hermes", "<tool_call>", []),
    ("hermes", 'I look.\n<tool_call>\n{"name": "get_', ["I look."]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": ', []),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a', [("f", '{"a')]),
    ("hermes", f'{hermes(F)}\n<tool_call>\n{{"na', [("f", '{"a": 1}')]),
    ("hermes", "The <tool_call> tag", ["The <tool_call> tag"]),
    ("hermes", "I look.\n<tool_", ["I look."]),
    ("hermes", f"{hermes(F)}\n<to", [("f", '{"a": 1}')]),
    ("hermes", "a <t", ["a <t"]),
    ("mistral", "[TOOL", []),
    ("mistral", '[TOOL_CALLS] [{"name": "f"', []),
    ("mistral", f'[TOOL_CALLS] [{F}, {{"name": "f", "arguments": {{', [("f", '{"a": 1}'), ("f", "{")]),
    ("mistral_named", "[TOOL_CALLS]get_wea", []),
    ("llama_json", '{"name": "g', ['{"name": "g']),
    ("llama_json", '{"name": "f", "parameters": {"a": ', [("f", '{"a": ')]),
    ("pythonic", "[f(a=1, b", [("f", '{"a": 1, ')]),
]


@pytest.mark.parametrize("enforced", [NAMES, ()], ids=["enforced", "free"])
@pytest.mark.parametrize(("dialect", "text", "expected"), CUT)
def test_a_call_that_a_limit_cuts_keeps_its_text_without_markup(
    dialect: str, text: str, expected: list[str | tuple[str, str]], enforced: tuple[str, ...]
) -> None:
    for split in range(len(text) + 1):
        parser = new_parser(dialect, FITS, enforced, names=NAMES)
        assert parse(parser, [text[:split], text[split:]], cut=True) == expected


@pytest.mark.parametrize("text", ["<tool", "<tool_call>", '<tool_call>\n{"na'])
def test_a_required_call_that_a_limit_cuts_has_no_content(text: str) -> None:
    parser = new_parser("hermes", FITS, NAMES, names=NAMES, calls_only=True)
    assert parse(parser, [*text], cut=True) == []


def answer_or_calls(dialect: str) -> ReplyParser:
    return new_parser(dialect, FITS, NAMES, names=NAMES, may_answer=True)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_is_not_searched_for_calls(dialect: str) -> None:
    for text in (
        f'{{"a":"{hermes("x")} [TOOL_CALLS]f{{}} [f()]"}}',
        '{"name":"f","parameters":{}}',
        "12",
        "",
    ):
        for split in range(len(text) + 1):
            assert "".join(map(str, parse(answer_or_calls(dialect), [text[:split], text[split:]]))) == text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_calls_instead_of_an_answer_are_found_wherever_the_text_is_split(dialect: str) -> None:
    text, expected = LIVE[dialect]
    if isinstance(expected[0], str):
        text, expected = text.removeprefix(expected[0]).lstrip(), expected[1:]
    for split in range(len(text) + 1):
        assert parse(answer_or_calls(dialect), [text[:split], text[split:]]) == expected


@pytest.mark.parametrize(("text", "kept"), [("<tool_", ""), ("<t", "<t"), ('{"a": "<tool_', '{"a": "<tool_')])
def test_of_an_answer_or_a_call_that_a_limit_cuts_markup_is_left_out(text: str, kept: str) -> None:
    for split in range(len(text) + 1):
        found = parse(answer_or_calls("hermes"), [text[:split], text[split:]], cut=True)
        assert "".join(map(str, found)) == kept


def test_an_answer_streams() -> None:
    parser = answer_or_calls("hermes")
    assert [parser.push(part, False) for part in ('{"a"', ":1")] == [
        [ContentDelta('{"a"')],
        [ContentDelta(":1")],
    ]


def test_a_long_call_is_read_in_linear_time() -> None:
    """A million characters, one at a time: reading the body anew each time would take hours."""
    parser = new_parser("hermes")
    for character in '<tool_call>{"name": "f", "arguments": {"a": "':
        assert parser.push(character, False) == []
    for _ in range(200_000):
        parser.push("xxxxx", False)
    [delta] = parser.push('"}}</tool_call>', True)
    assert isinstance(delta, ToolCallDelta) and len(delta.arguments_fragment) == 1_000_009


def test_a_call_that_its_tools_schema_refuses_is_content() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    fits = check_against([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    for arguments, called in (('{"city": "Oslo"}', True), ('{"city": 3}', False), ("{}", False)):
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        [delta] = new_parser("hermes", fits).push(text, True)
        assert isinstance(delta, ToolCallDelta) == called


def test_a_tool_whose_parameters_are_not_a_schema_takes_any_object() -> None:
    fits = check_against([{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}])
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    [delta] = new_parser("hermes", fits).push(text, True)
    assert isinstance(delta, ToolCallDelta)
