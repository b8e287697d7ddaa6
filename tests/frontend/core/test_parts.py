"""The pieces of a reply become parts: reasoning, texts and calls."""

from __future__ import annotations

from arbora.frontend.core.parts import Begun, Change, Ended, More, Parts, Piece
from arbora.frontend.core.tools.reply_parser import ContentDelta, Delta, ToolCallDelta


def piece(content: str = "", reasoning: str = "", *deltas: Delta) -> Piece:
    return Piece(0, content, (), None, reasoning, deltas)


def call(index: int, fragment: str = "", id: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(index, id, None if id is None else "look", fragment)


def changes(*pieces: Piece) -> list[Change]:
    parts = Parts()
    found = [change for each in pieces for change in parts.push(each)]
    return [*found, *parts.end()]


def test_pieces_of_one_kind_are_one_part() -> None:
    begun, *more, ended = changes(piece("a"), piece("b"))
    part = begun.part
    assert (part.kind, part.text) == ("text", "ab")
    assert [begun, *more, ended] == [Begun(part), More(part, "a"), More(part, "b"), Ended(part)]


def test_another_kind_begins_another_part() -> None:
    parts = Parts()
    for each in (
        piece(reasoning="Hm."),
        piece("I look."),
        piece("", "", call(0, "", "call_a"), call(0, "{}")),
        piece("", "", call(1, '{"x":', "call_b")),
        piece("", "", call(1, "1}")),
        piece("Done."),
    ):
        parts.add(each)
    expected = [
        ("reasoning", "", "Hm."),
        ("text", "", "I look."),
        ("call", "call_a", "{}"),
        ("call", "call_b", '{"x":1}'),
        ("text", "", "Done."),
    ]
    assert [(each.kind, each.id, each.text) for each in parts.all] == expected
    assert parts.text("text") == "I look.Done."
    assert [each.name for each in parts.calls()] == ["look", "look"]


def test_texts_and_calls_of_one_piece_keep_their_order() -> None:
    parts = Parts()
    parts.add(piece("", "", call(0, '{"a": 1', "call_a")))
    parts.add(piece("Then.", "", call(0, "}"), ContentDelta("Then."), call(1, "{}", "call_b")))
    found = [(each.kind, each.text) for each in parts.all]
    assert found == [("call", '{"a": 1}'), ("text", "Then."), ("call", "{}")]


def test_every_part_ends_before_the_next_begins() -> None:
    found = changes(piece("a", "b"), piece("", "", call(0, "{}", "call_a")), piece("c"))
    edges = [type(change) for change in found if isinstance(change, Begun | Ended)]
    assert edges == [Begun, Ended] * 4


def test_a_reply_without_text_has_no_part() -> None:
    assert changes(piece()) == []


def test_a_text_is_added_alone_only_to_an_open_text() -> None:
    parts = Parts()
    assert not parts.add_text("a")
    parts.add(piece("", "Hm."))
    assert not parts.add_text("a")
    parts.add(piece("a"))
    assert parts.add_text("b") and parts.text("text") == "ab"
