"""From tokens to text that can be sent, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arbora.frontend.core.text.detokenizer import Detokenizer, StopMatcher, TextDelta
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import KINDS, tokenizer_of_kind

each_kind = pytest.mark.parametrize("kind", list(KINDS))


def packed(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def chunks_of(data: st.DataObject, tokens: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=len(tokens))))
    return [tokens[start:end] for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]


def push_all(detokenizer: Detokenizer, chunks: list[list[int]]) -> list[TextDelta]:
    last = len(chunks) - 1
    return [detokenizer.push(packed(chunk), index == last) for index, chunk in enumerate(chunks)]


def random_tokens(data: st.DataObject, kind: str) -> list[int]:
    """Half of them from real text, so that stop strings and whole characters are met."""
    tokenizer = tokenizer_of_kind(kind)
    text = data.draw(st.text(st.sampled_from("abc é你😀\n"), max_size=15))
    real = list(np.frombuffer(tokenizer.encode(text, False), "<i4"))
    noise = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=6))
    return real + noise if data.draw(st.booleans()) else noise + real


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The definition: the stop string that ends first; the longest if several end together."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(ends)[0], min(ends)[2]) if ends else None


@each_kind
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_text_without_stop_strings_is_that_of_decode_however_it_is_chunked(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of_kind(kind)
    tokens = random_tokens(data, kind)
    skip, continues = data.draw(st.booleans()), data.draw(st.booleans())
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, continues_text=continues)
    deltas = push_all(detokenizer, chunks_of(data, tokens))
    expected = tokenizer.decode(packed(tokens), skip, continues_text=continues)
    assert "".join(delta.text for delta in deltas) == expected
    assert deltas[-1].tokens_kept == len(tokens)


@each_kind
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_text_is_cut_at_the_first_stop_string_however_it_is_chunked(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of_kind(kind)
    tokens = random_tokens(data, kind)
    stops = data.draw(st.lists(st.text("abc é你", min_size=1, max_size=4), min_size=1, max_size=3))
    include = data.draw(st.booleans())
    deltas = push_all(Detokenizer(tokenizer, stops, include), chunks_of(data, tokens))
    whole = tokenizer.decode(packed(tokens), continues_text=True)
    expected, stopped = whole, None
    found = first_stop(whole, stops)
    if found is not None:
        end, stopped = found
        expected = whole[:end] if include else whole[: end - len(stopped)]
    assert "".join(delta.text for delta in deltas) == expected
    assert deltas[-1].stopped == stopped


@each_kind
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_sent_text_is_never_revised_and_certain_text_is_sent_at_once(kind: str, data: st.DataObject) -> None:
    """After each push the text sent is the text so far, less the longest end that may become a stop."""
    tokenizer = tokenizer_of_kind(kind)
    tokens = random_tokens(data, kind)
    stops = data.draw(st.lists(st.text("abc é你", min_size=1, max_size=4), max_size=3))
    detokenizer = Detokenizer(tokenizer, stops)
    sent = ""
    for count, token in enumerate(tokens, 1):
        delta = detokenizer.push(packed([token]), False)
        sent += delta.text
        if delta.stopped is not None:
            break
        so_far = tokenizer.decode(packed(tokens[:count]), continues_text=True)
        decided = so_far.rstrip("\N{REPLACEMENT CHARACTER}")
        held = max((n for s in stops for n in range(len(s)) if decided.endswith(s[:n])), default=0)
        if not so_far.endswith("\N{REPLACEMENT CHARACTER}"):
            assert sent == so_far[: len(so_far) - held]
        assert so_far.startswith(sent.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_a_character_split_over_tokens_is_sent_whole() -> None:
    tokenizer = tokenizer_of_kind("metaspace")
    detokenizer = Detokenizer(tokenizer)
    tokens = np.frombuffer(tokenizer.encode("€", False), "<i4").tolist()[-3:]
    assert [detokenizer.push(packed([token]), False).text for token in tokens] == ["", "", "€"]


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    tokenizer = tokenizer_of_kind("metaspace")
    detokenizer = Detokenizer(tokenizer)
    first = np.frombuffer(tokenizer.encode("€", False), "<i4").tolist()[-3]
    assert detokenizer.push(packed([first]), False).text == ""
    assert detokenizer.push(b"", True).text == "\N{REPLACEMENT CHARACTER}"


def test_the_token_that_completes_a_stop_string_is_the_last_one_kept() -> None:
    tokenizer = tokenizer_of_kind("gemma")
    tokens = tokenizer.encode("a#b", False) + tokenizer.encode("##", False)
    detokenizer = Detokenizer(tokenizer, ["#b#"])
    delta = detokenizer.push(tokens, True)
    assert (delta.text, delta.stopped) == ("a", "#b#")
    kept = tokenizer.decode(tokens[: 4 * delta.tokens_kept])
    assert "#b#" in kept and "#b#" not in tokenizer.decode(tokens[: 4 * (delta.tokens_kept - 1)])


def test_a_stop_string_within_the_first_min_tokens_does_not_count() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    tokens = [tokenizer.encode(character, False) for character in "xaxbx"]
    detokenizer = Detokenizer(tokenizer, ["x"], min_tokens=3)
    deltas = [detokenizer.push(token, False) for token in tokens]
    assert [delta.text for delta in deltas] == ["x", "a", "x", "b", ""]
    assert deltas[-1].stopped == "x"


def test_tokens_after_a_stop_string_are_ignored() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    detokenizer = Detokenizer(tokenizer, ["b"])
    first = detokenizer.push(tokenizer.encode("ab"), False)
    assert detokenizer.push(tokenizer.encode("more"), True) == TextDelta("", "b", first.tokens_kept, ())


def test_a_stop_string_may_begin_inside_the_false_start_of_another() -> None:
    matcher = StopMatcher(["aab"])
    assert matcher.push("aa") is None and matcher.held == 2
    found = matcher.push("ab")
    assert found is not None and (found.stop, found.end) == ("aab", 2)


def test_offsets_say_where_each_tokens_text_begins() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    tokens = tokenizer.encode("The quick brown fox", False)
    delta = Detokenizer(tokenizer).push(tokens, True)
    pieces = [tokenizer.token_text(token) for token in np.frombuffer(tokens, "<i4").tolist()]
    assert all(delta.text[o:].startswith(p) for o, p in zip(delta.offsets, pieces, strict=True))
    assert delta.offsets == tuple(sum(map(len, pieces[:n])) for n in range(len(pieces)))


def test_special_tokens_that_mark_up_a_call_can_be_shown() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    assert start is not None and end is not None
    detokenizer = Detokenizer(tokenizer, shown_special=frozenset({start}))
    assert detokenizer.push(packed([start, end]), True).text == "<|im_start|>"
