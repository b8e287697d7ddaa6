"""The modules of the page that compute: growing JSON, schemas, replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from page_module import PageModule

VALUES: list[Any] = [
    {"a": [1, {"b": 'x A \n " \\ é 😀'}, True, None], "n": -1.5e3, "o": {}, "l": [[], [0]], "": False},
    [],
    "text",
    -12.5,
    None,
    {"__proto__": {"x": 1}, "constructor": 2},
]


@pytest.fixture(scope="module")
def growing() -> PageModule:
    return PageModule("growing_json")


@pytest.fixture(scope="module")
def schemas() -> PageModule:
    return PageModule("schema")


# JSON that grows


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_value_is_read_from_each_of_its_beginnings(
    growing: PageModule, value: Any, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    beginnings = [text[:length] for length in range(len(text) + 1)]
    read = growing.run("texts.map((text) => readGrowing(text))", texts=beginnings)
    assert [each["state"] for each in read if each["state"] == "invalid"] == []
    assert read[0]["state"] == "empty"
    # A number at the end of the text may go on.
    assert read[-1]["state"] == ("open" if isinstance(value, float) else "complete")
    assert read[-1]["value"] == value


def test_the_open_value_is_named_by_its_path(growing: PageModule) -> None:
    read = growing.run("readGrowing(text)", text='{"people": [{"name": "Ada"}, {"name": "Gr')
    assert read == {
        "state": "open",
        "value": {"people": [{"name": "Ada"}, {"name": "Gr"}]},
        "path": ["people", 1, "name"],
    }
    assert growing.run("readGrowing(text).path", text='{"people": [{"na') == ["people", 0]


@pytest.mark.parametrize("text", ["{,", "[1,]", '{"a" 1', "nul1", "1 2", '{"a": tru}', "Hello", "[1 2]", "]"])
def test_a_text_that_no_json_begins_with_is_invalid(growing: PageModule, text: str) -> None:
    assert growing.run("readGrowing(text).state", text=text) == "invalid"


def test_json_that_is_nested_very_deeply_does_not_fail(growing: PageModule) -> None:
    assert growing.run("readGrowing('['.repeat(1000000)).state") == "invalid"


# Schemas

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "friend"],
}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", None),
        ("{", "Not JSON yet"),
        ("[]", "A schema is an object"),
        (json.dumps(PERSON), None),
        ('{"type": "strin"}', 'schema.type is "strin"'),
        ('{"properties": {"a": {"type": "objekt"}}}', "schema.properties.a.type"),
        ('{"items": {"enum": []}}', "schema.items.enum"),
        ('{"anyOf": [{}, {"required": "a"}]}', "schema.anyOf[1].required"),
    ],
)
def test_a_mistake_in_a_schema_is_named(schemas: PageModule, text: str, error: str | None) -> None:
    found = schemas.run("readSchema(text).error ?? null", text=text)
    assert found is None if error is None else error in found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([], "object"),
        (["name"], "string"),
        (["tags", 3], 'one of "a", "b"'),
        (["friend"], "null or object"),
        (["friend", "friend", "name"], "string"),
        (["other"], "any value"),
    ],
)
def test_the_schema_at_a_place_is_said_in_words(schemas: PageModule, path: list[Any], expected: str) -> None:
    assert schemas.run("allowed(partsAt(schema, path))", schema=PERSON, path=path) == expected


def test_the_required_properties_that_are_missing_are_listed(schemas: PageModule) -> None:
    run = schemas.run
    value = {"name": "Ada", "friend": {}}
    assert run("stillRequired(schema, [], value)", schema=PERSON, value={"name": "Ada"}) == ["friend"]
    assert run("stillRequired(schema, ['friend'], value)", schema=PERSON, value=value) == ["name", "friend"]
    assert run("stillRequired(schema, ['name'], value)", schema=PERSON, value=value) == []


def test_a_reference_to_itself_ends(schemas: PageModule) -> None:
    circle = {"anyOf": [{"$ref": "#"}]}
    assert schemas.run("allowed(partsAt(schema, ['a', 'b']))", schema=circle) == "any value"


def test_a_path_is_written_as_in_code(schemas: PageModule) -> None:
    assert schemas.run("pathText(path)", path=["people", 1, "name"]) == "people[1].name"


# Replies


def test_events_are_read_from_any_pieces() -> None:
    reader = PageModule("events")
    stream = 'data: {"a": 1}\n\n: comment\n\ndata: {"b": "\u00e9"}\n\ndata: [DONE]\n\n'
    pieces = [stream[start : start + 7] for start in range(0, len(stream), 7)]
    expression = "((reader) => pieces.flatMap((piece) => reader.read(piece)))(new EventReader())"
    assert reader.run(expression, pieces=pieces) == ['{"a": 1}', '{"b": "é"}', "[DONE]"]


def test_a_reply_with_calls_is_put_together_from_its_chunks() -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": function}]}

    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm. "},
        {"content": "I ask."},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}]},
        call(0, arguments='{"city":'),
        call(0, arguments='"Oslo"}'),
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "time", "arguments": "{}"}}]},
    ]
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    unenforced = [{"keyword": "minLenght", "path": "#/properties/a"}]
    chunks.append({"choices": [], "usage": {"prompt_tokens": 40}, "unenforced": unenforced})
    replies = PageModule("reply")
    grown = "chunks.reduce((reply, chunk, index) => extend(reply, chunk, 100 * index), emptyReply())"
    reply = replies.run(grown, chunks=chunks)
    assert (reply["content"], reply["reasoning"], reply["finish"]) == ("I ask.", "Hm. ", "tool_calls")
    assert reply["unenforced"] == unenforced
    message = replies.run("asMessage(reply)", reply=reply)
    calls = [
        (each["id"], each["function"]["name"], each["function"]["arguments"])
        for each in message["tool_calls"]
    ]
    assert calls == [("c1", "weather", '{"city":"Oslo"}'), ("c2", "time", "{}")]
    assert (reply["first"], reply["last"]) == (100, 600)
    kept = replies.run("asMessage(keptReply({ message }))", message=message)
    assert kept == message
    usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 30}}
    assert replies.run("cachedShare(usage)", usage=usage) == {"prompt": 40, "cached": 30, "percent": 75}


@pytest.mark.parametrize(
    ("times", "tokens", "expected"),
    [
        ((1000, None, None), 0, (None, None)),
        ((1000, 1250.4, 2250.4), 11, (250, 10)),
        ((1000, 1250, 1290), 11, (250, None)),
        ((1000, 1250, 2250), 1, (250, None)),
    ],
)
def test_the_speed_of_a_reply_is_that_after_its_first_piece(times: Any, tokens: int, expected: Any) -> None:
    begun, first, last = times
    reply = {"begun": begun, "first": first, "last": last, "usage": {"completion_tokens": tokens}}
    assert PageModule("reply").run("speedOf(reply)", reply=reply) == dict(
        zip(("first", "rate"), expected, strict=True)
    )


def test_a_reply_with_drafts_says_what_they_gain() -> None:
    details = {"reasoning_tokens": 0, "steps": 20, "drafted_tokens": 36, "accepted_tokens": 28}
    usage: dict[str, Any] = {"completion_tokens": 48, "completion_tokens_details": details}
    replies = PageModule("dom", "reply")
    text = replies.run("draftsText(draftsOf(usage))", usage=usage)
    assert text == "2.4 tokens a step, 78 % of drafts accepted"
    without: list[Any] = [None, {"completion_tokens": 5}, {"completion_tokens_details": {"steps": 3}}]
    for each in without:
        assert replies.run("draftsText(draftsOf(usage))", usage=each) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ('{"name": "f"}', ["f"]),
        ('[{"type": "function", "function": {"name": "g"}}, {"name": "f"}]', ["g", "f"]),
        ("[{}]", "Tool 1 has no name"),
        ("[5]", "Tool 1 has no name"),
        ("[", "Not JSON yet"),
    ],
)
def test_tools_are_read_with_or_without_their_wrapper(text: str, expected: list[str] | str | None) -> None:
    found = PageModule("tools").run("readTools(text)", text=text)
    if isinstance(expected, str):
        assert expected in found["error"]
    else:
        assert [each["function"]["name"] for each in found.get("tools", [])] == (expected or [])
