"""Finds the text of a reply's tokens in the conversation's next prompt."""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ....runtime.messages import Tokens
from .control_texts import ControlTexts
from .cut_points import CutPoints
from .tokenized_text import START, Cut
from .tokenizer import CONTROL_MARK, Tokenizer


class ReplyText(NamedTuple):
    """The first `tokens` ids of a reply have the text `text`, which can be cut at `cuts`."""

    text: bytes
    tokens: int
    cuts: list[Cut]


def find_whole_tokens(tokenizer: Tokenizer, cuts: CutPoints, text: str, tokens: Tokens) -> list[ReplyText]:
    """The ids whose text is wholly in `text`, the text that the detokenizer returned; empty if there are
    none.

    The detokenizer may have dropped a SentencePiece space at the beginning. The template may or may not put
    one there, so the ids are returned for the text with and without it.
    """
    ids = np.frombuffer(tokens, "<i4").tolist()
    spaces = range(tokenizer.rules.leading_spaces + 1)
    parts, is_cut = list(map(tokenizer.token_bytes, ids)), [token in cuts.ids for token in ids]
    readings = [_read(parts, is_cut, b" " * dropped + text.encode()) for dropped in spaces]
    dropped = max(spaces, key=lambda number: readings[number].tokens)
    found = readings[dropped]
    as_returned = [Cut(cut.offset - dropped, cut.tokens) for cut in found.cuts]
    returned = ReplyText(found.text[dropped:], found.tokens, as_returned)
    return [reply for reply in (found, returned)[: 1 + dropped] if reply.text]


def guard_as_sent_back(reply: ReplyText, control: ControlTexts) -> ReplyText:
    """The reply with the marks that its text gets when the client sends it back as a message's content.

    Special tokens that the model sampled get none, because the template writes them and not the client.
    """
    text = reply.text.decode()
    places = control.find_places(text)
    if not places:
        return reply
    sampled = {cut.offset for cut in reply.cuts}
    parts, offsets, last = [], [], 0
    for place in places:
        first = len(text[: place - 1].encode())
        if place and place < len(text) and first in sampled:
            continue
        parts.append(text[last:place].encode())
        offsets.append(len(text[:place].encode()))
        last = place
    mark = CONTROL_MARK.encode()
    cuts = [Cut(cut.offset + len(mark) * bisect_right(offsets, cut.offset), cut.tokens) for cut in reply.cuts]
    return ReplyText(mark.join((*parts, text[last:].encode())), reply.tokens, cuts)


def _read(parts: list[bytes], is_cut: list[bool], text: bytes) -> ReplyText:
    """The first tokens whose bytes, `parts`, match the text."""
    ends = list(accumulate(map(len, parts)))
    count = min(bisect_left(ends, len(text)) + 1, len(parts))
    if b"".join(parts[:count]) != text:
        return _decode(parts, is_cut, text)
    cuts = [Cut(ends[index] - len(parts[index]), index) for index in range(count) if is_cut[index]]
    return ReplyText(text, count, cuts)


def _decode(parts: list[bytes], is_cut: list[bool], text: bytes) -> ReplyText:
    """Decodes token by token, because some tokens are missing or changed in the text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    whole, length, read, found = START, 0, 0, []
    for part, cut in zip(parts, is_cut, strict=True):
        state, before = decoder.getstate(), ""
        if cut:
            before = decoder.decode(b"", True)
            found.append(Cut(length + len(before.encode()), read))
        piece = (before + decoder.decode(part)).encode()
        if not text.startswith(piece, length):
            decoder.setstate(state)
            break
        length, read = length + len(piece), read + 1
        if not decoder.getstate()[0]:
            whole = Cut(length, read)
    cut_off = decoder.decode(b"", True).encode()
    if cut_off and text[length:] == cut_off:
        whole = Cut(len(text), read)
    return ReplyText(text[: whole.offset], whole.tokens, [each for each in found if each < whole])
