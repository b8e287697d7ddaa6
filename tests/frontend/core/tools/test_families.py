"""Each family's calls: detected from its template, written, parsed at any cut, and constrained, alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.core.constraint import after_reasoning
from arbora.frontend.core.requested_tools import CallsWanted, tool_use
from arbora.frontend.core.text.reasoning import HARMONY, KNOWN_REASONING, ReasoningFormat
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.reply_parser import (
    ContentDelta,
    ReasoningDelta,
    ReplyParser,
    ToolCallDelta,
    ToolReading,
)
from arbora.frontend.core.tools.tool_grammar import build_optional_calls, build_required_calls, find_enforced
from arbora.runtime.grammar_spec import GrammarKind, GrammarSpec
from family_templates import (
    ARGUMENTS,
    CLOCK,
    FAMILY_TEMPLATES,
    FIND,
    TOOLS,
    TYPES,
    family,
    render_calls,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_tag

SINGLE = {"harmony", "llama_json"}
"""the families whose replies have one call"""


def reasoning_of(name: str) -> ReasoningFormat:
    start = FAMILY_TEMPLATES[name].reasoning[0].strip()
    return next(each for each in KNOWN_REASONING if each.start.strip() == start)


def parser(name: str, *, enforced: bool, **options: Any) -> ReplyParser:
    format = family(name)[1]
    names = [tool["function"]["name"] for tool in TOOLS]
    known = find_enforced(TOOLS, format, frozenset()) if enforced else frozenset()
    tools = ToolReading(format, lambda call: call.name in names, known, names, types=TYPES)
    return ReplyParser(reasoning_of(name), tools, **options)


Part = tuple[str, Any]


def read(parser: ReplyParser, parts: list[str], *, decodes: bool = True) -> list[Part]:
    """Reasoning and content as ("reasoning", text) and ("content", text), and calls as (name, arguments)."""
    found: list[Part] = []
    for index, part in enumerate(parts):
        for delta in parser.push(part, index == len(parts) - 1):
            match delta:
                case ToolCallDelta(_, _, None, fragment):
                    found[-1] = (found[-1][0], found[-1][1] + fragment)
                case ToolCallDelta(_, _, str(name), fragment):
                    found.append((name, fragment))
                case ContentDelta(text) | ReasoningDelta(text):
                    kind = "content" if isinstance(delta, ContentDelta) else "reasoning"
                    if found and found[-1][0] == kind:
                        found[-1] = (kind, found[-1][1] + text)
                    else:
                        found.append((kind, text))
    if not decodes:
        return found
    return [(kind, text if kind in ("content", "reasoning") else json.loads(text)) for kind, text in found]


def read_at_each_cut(name: str, text: str, expected: list[Part], *, enforced: bool, **options: Any) -> None:
    for split in range(len(text) + 1):
        found = read(parser(name, enforced=enforced, **options), [text[:split], text[split:]])
        assert found == expected, f"cut at {split}: {text[:split][-20:]!r}"
    assert read(parser(name, enforced=enforced, **options), [*text, ""]) == expected


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_the_format_is_detected_as_the_template_writes_it(name: str) -> None:
    format = family(name)[1]
    assert format.name == name.partition(",")[0]
    if format.call_id is None:
        assert format.write([FIND]) == render_calls(name, FIND)
        assert format.write([CLOCK]) == render_calls(name, CLOCK)


@pytest.mark.parametrize("enforced", [True, False], ids=["enforced", "free"])
@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_calls_that_the_template_writes_are_read_at_every_cut(name: str, enforced: bool) -> None:
    calls = [FIND] if name in SINGLE else [FIND, CLOCK]
    text = render_calls(name, *calls)
    if name in ("phi4_mini", "pythonic", "llama_json") or reasoning_of(name).silent:
        read_at_each_cut(name, text, calls, enforced=enforced)
    else:
        read_at_each_cut(name, f"I look.\n{text}", [("content", "I look."), *calls], enforced=enforced)


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_the_grammar_allows_the_calls_that_the_template_writes(name: str) -> None:
    format = family(name)[1]
    several = name not in SINGLE
    calls = [FIND, CLOCK] if several else [FIND]
    text = render_calls(name, *calls)
    for build in (build_required_calls, build_optional_calls):
        machine = compile_tag(build(format, TOOLS, several=several)).machine
        assert machine.accepts(text.encode()), build
        wrong = render_calls(name, ("find", {**ARGUMENTS, "count": "three"}))
        assert not machine.accepts(wrong.encode()), build
        assert not machine.accepts(render_calls(name, ("find", {"count": 3})).encode()), build


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_a_call_after_reasoning_is_read_at_every_cut(name: str) -> None:
    text = render_calls(name, FIND, reasoning_content="Hm.\nI look.")
    read_at_each_cut(name, text, [("reasoning", "Hm.\nI look."), FIND], enforced=True)


@pytest.mark.parametrize(
    "name", [name for name in FAMILY_TEMPLATES if name not in ("pythonic", "harmony", "phi4_mini")]
)
def test_a_call_inside_of_reasoning_is_found_and_other_text_stays_reasoning(name: str) -> None:
    reasoning, (opened, closed) = reasoning_of(name), FAMILY_TEMPLATES[name].reasoning
    if name == "llama_json":
        return
    call = render_calls(name, FIND)
    tag = family(name)[1].tags[0]
    text = f"{opened}Hm.\n{call}\nWell{closed}Done."
    expected = [("reasoning", "Hm."), FIND, ("reasoning", "Well"), ("content", "Done.")]
    assert read(parser(name, enforced=True), [text]) == expected
    assert read(parser(name, enforced=True), [*text, ""]) == expected
    mention = f"I may write {tag} here, or {tag} there."
    for text in (f"{opened}{mention}{closed}Done.", f"{opened}{mention}"):
        found = read(parser(name, enforced=True), [*text, ""])
        assert found[0] == ("reasoning", mention)
        assert found[1:] == ([("content", "Done.")] if "Done." in text else [])
    assert reasoning.start.strip() in text


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_a_malformed_call_comes_as_text_of_which_nothing_is_lost(name: str) -> None:
    call = render_calls(name, FIND)
    for text in (
        call[: len(call) // 2],
        call.replace("find", "unknown"),
        call.replace("count", "zahl", 1)[:-9] + "x",
    ):
        found = read(parser(name, enforced=False), [*text, ""])
        whole = "".join(str(part) for _, part in found)
        for mark in reasoning_of(name).silent:
            whole, text = whole.replace(mark, ""), text.replace(mark, "")
        assert whole == text and all(kind == "content" for kind, _ in found), found


def fragments_of(name: str) -> list[str]:
    """Texts of which calls, reasoning and texts like them are made."""
    format, reasoning = family(name)[1], reasoning_of(name)
    parts = [part for form in format.forms for part in (form.prefix, *form.head, form.tail, form.suffix)]
    syntax = format.parameters
    values = (
        ['{"note": "a"}', "{}"] if syntax is None else [*syntax.name, syntax.end, syntax.quote or "", "note"]
    )
    marks = [*format.tags, format.closing_tag, reasoning.start, reasoning.end, *reasoning.silent]
    call = render_calls(name, CLOCK)
    return [part for part in (*parts, *values, *marks, call, "find", '"', "\\", "\n", " ", "x<", "{") if part]


@pytest.mark.parametrize("enforced", [True, False], ids=["enforced", "free"])
@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_read_does_not_depend_on_how_the_text_is_split(
    name: str, enforced: bool, data: st.DataObject
) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(fragments_of(name)), max_size=9)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def read_raw(parts: list[str]) -> list[tuple[str, str]]:
        return read(parser(name, enforced=enforced), parts, decodes=False)

    whole = read_raw([text])
    assert read_raw(parts) == whole
    assert read_raw([*text, ""]) == whole


def test_text_after_a_call_that_does_not_end_it_is_content() -> None:
    text = "<|python_start|>[clock()]["
    read_at_each_cut("pythonic", text, [("clock", {}), ("content", ")][")], enforced=True)


ANALYSIS = f"{HARMONY.start}Hm.<|end|><|start|>assistant"


@pytest.mark.parametrize("kind", ["json_schema", "regex"])
def test_a_constrained_answer_of_harmony_is_in_its_channel(kind: GrammarKind) -> None:
    text = '{"type":"integer"}' if kind == "json_schema" else "[0-9]+"
    spec = after_reasoning(GrammarSpec(kind, text), HARMONY._replace(by_template=True), "<|start|>assistant")
    assert spec is not None
    machine = compile_tag(json.loads(spec.text)).machine
    for reply in (f"{HARMONY.answer}12", f"{ANALYSIS}{HARMONY.answer}12"):
        assert machine.accepts(reply.encode())
        assert read(ReplyParser(HARMONY), [*reply, ""], decodes=False)[-1] == ("content", "12")
    assert not machine.accepts(b"12") and not machine.accepts(f"{HARMONY.answer}x".encode())


def test_harmony_answers_or_calls_after_reasoning() -> None:
    wanted = CallsWanted("auto", TOOLS)
    answer = GrammarSpec("json_schema", '{"type":"integer"}')
    use = tool_use(wanted, FORMATS["harmony"], answer, HARMONY.answer)
    assert use.grammar is not None
    known = HARMONY._replace(by_template=True)
    spec = after_reasoning(use.grammar, known, "<|start|>assistant", calls=True)
    assert spec is not None
    machine = compile_tag(json.loads(spec.text)).machine
    call = render_calls("harmony", CLOCK)
    for begin in ("", ANALYSIS):
        for reply, expected in ((f"{HARMONY.answer}12", ("content", "12")), (call, ("clock", "{}"))):
            text = begin + reply
            assert machine.accepts(text.encode()), text
            reader = ReplyParser(HARMONY, use.make_reading((), allowed=False))
            assert read(reader, [*text, ""], decodes=False)[-1] == expected
    natural = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}"
    optional = compile_tag(build_optional_calls(FORMATS["harmony"], TOOLS, several=False)).machine
    assert optional.accepts(natural.encode()) and not optional.accepts(natural.replace("{}", "{1}").encode())
    assert read(parser("harmony", enforced=True), [*ANALYSIS, *natural, ""]) == [("reasoning", "Hm."), CLOCK]


def test_every_format_has_a_template() -> None:
    assert {name.partition(",")[0] for name in FAMILY_TEMPLATES} == set(FORMATS)
