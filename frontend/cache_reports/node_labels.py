"""The labels of the tree's nodes: the role and the first words of the message in which a node begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...runtime.messages import TOKEN_BYTES, Tokens
from ..core.cache_misses.recent_prompts import count_common_tokens
from ..core.text.tokenizer import Tokenizer

LABEL_CHARACTERS = 80
NEAR_CHARACTERS = 40
"""If a node begins at most this many characters after the beginning of a message, its label is the message's
first words."""
_ROLES = {
    "developer": "system",
    "model": "assistant",
    "ipython": "tool",
    "function": "tool",
    "inst": "user",
    "/inst": "assistant",
}
"""by the name in a template: the role, if it differs"""
_NAME = r"system|user|assistant|tool|" + "|".join(map(re.escape, _ROLES))
_HEADER = re.compile(rf"\s*({_NAME})\s*(?:\n|$)", re.IGNORECASE)
_MARK = re.compile(rf"[^\w/]*({_NAME})[^\w/]*", re.IGNORECASE)
_PIECES = re.compile("\0([^\0]*)\0")


class NodeLabel(NamedTuple):
    role: str | None
    text: str


class _Turn(NamedTuple):
    role: str | None
    start: int  # where the message's text begins, in characters of the text without headers


def measure_shared_starts(heads: Sequence[tuple[int | None, Tokens]]) -> list[int]:
    """Returns for each node how many bytes of its first tokens a sibling begins with too, at most all tokens
    but one. `heads` has the parent and the first tokens of each node."""
    shared = [0] * len(heads)
    order = sorted((parent, head, place) for place, (parent, head) in enumerate(heads) if parent is not None)
    for (parent, head, place), (next_parent, next_head, next_place) in pairwise(order):
        if parent == next_parent:  # in sorted order the longest common beginning is that with a neighbour
            common = TOKEN_BYTES * count_common_tokens(head, next_head)
            shared[place] = max(shared[place], min(common, len(head) - TOKEN_BYTES))
            shared[next_place] = max(shared[next_place], min(common, len(next_head) - TOKEN_BYTES))
    return shared


def make_label(lead: Tokens, head: Tokens, tokenizer: Tokenizer) -> NodeLabel:
    """The label of a node that begins with `head`, after the tokens `lead`.

    Special tokens and headers such as `user` are left out. `role` is None if no header is in `lead`, and the
    text then begins at the last word before the node, after an ellipsis.
    """
    text, turns, start = _read_turns(_mark_special(lead, tokenizer), _mark_special(head, tokenizer))
    number = max((place for place, turn in enumerate(turns) if turn.start <= start), default=0)
    if number + 1 < len(turns) and not text[start : turns[number + 1].start].strip():
        number += 1  # the node begins with the end of a message
    turn = turns[number]
    end = turns[number + 1].start if number + 1 < len(turns) else len(text)
    begin = turn.start
    if start - begin > NEAR_CHARACTERS or (turn.role is None and begin < start):
        begin = max(turn.start, *(text.rfind(space, 0, start) + 1 for space in " \n"))
        return NodeLabel(turn.role, "…" + text[begin:end].strip()[:LABEL_CHARACTERS])
    return NodeLabel(turn.role, text[begin:end].strip()[:LABEL_CHARACTERS])


def _mark_special(tokens: Tokens, tokenizer: Tokenizer) -> bytes:
    """The bytes of the tokens, with zeros around special ones."""
    special = tokenizer.special_tokens
    pieces = ((token, tokenizer.token_bytes(token)) for token in np.frombuffer(tokens, "<i4").tolist())
    return b"".join(b"\0%b\0" % piece if token in special else piece for token, piece in pieces)


def _read_turns(lead: bytes, head: bytes) -> tuple[str, list[_Turn], int]:
    """The text without special tokens and headers, its messages, and where the node begins in it."""
    border = len(lead.decode("utf-8", "replace")) if lead else 0
    pieces = _PIECES.split((lead + head).decode("utf-8", "replace"))
    text, turns, at, start = "", [_Turn(None, 0)], 0, -1
    for number, piece in enumerate(pieces):
        shown = piece
        if number % 2:
            at += 1
            if mark := _MARK.fullmatch(piece):
                turns.append(_Turn(_name_role(mark[1]), len(text)))
            shown = ""
        elif number and (header := _HEADER.match(piece)):
            turns.append(_Turn(_name_role(header[1]), len(text)))
            shown = piece[header.end() :]
        skipped = len(piece) - len(shown)
        if start < 0 and border <= at + len(piece):
            start = len(text) + max(0, border - at - skipped)
        text += shown
        at += len(piece) + number % 2
    return text, turns, len(text) if start < 0 else start


def _name_role(name: str) -> str:
    return _ROLES.get(name.lower(), name.lower())
