"""Finds places where a text can be cut so that its parts, tokenized separately, give the tokens of the
whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken

from .tokenizer import Tokenizer

_WINDOW = 1 << 18  # bytes of text that one search covers
_PROBES = ("Hello ", " a  b\n", "\n\nx", "é", " ", "▁", "")


class CutPoints:
    """Added tokens at which a text can be cut. A cut is just before such a token.

    `tokenizers` first finds added tokens in the raw text (leftmost, then longest), then works on the text
    between them. A token serves as a cut if it is found wherever its bytes occur. So it must not absorb the
    spaces around it, match whole words only, be searched in normalized text, or be a part of another token.
    Texts are UTF-8, offsets are in bytes.

    `ids` are those tokens; empty if no text can be cut without changing its tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.added_tokens
        raw = {
            token.content: index for index, token in added.items() if token.content and not token.normalized
        }
        able = {text: index for text, index in raw.items() if _is_cut_token(tokenizer, added[index], index)}
        unsure = _find_swallowed(able, raw)
        ids = {text: index for text, index in able.items() if text not in unsure}
        if any(token.single_word for token in added.values()) or not _parts_add_up(tokenizer, ids):
            ids = {}
        self.ids = frozenset(ids.values())
        self._longest = max((len(text.encode()) for text in ids), default=0)
        self._pattern = re.compile(make_trie_pattern(ids).encode())

    def is_cut(self, text: bytes, offset: int) -> bool:
        """True if the text can be cut at the offset. Its end counts as a cut."""
        return offset == len(text) or self._pattern.match(text, offset) is not None

    def find_after(self, text: bytes, offset: int) -> int:
        """The first cut after `offset`, or the text's end."""
        return next(self._find(text, offset + 1), len(text))

    def find_all(self, text: bytes) -> list[int]:
        """All cuts but the text's end."""
        return list(self._find(text, 0))

    def _find(self, text: bytes, start: int) -> Iterator[int]:
        """The cuts at or after `start`. Each search is short, because no other thread can run during it."""
        for window in range(start, len(text), _WINDOW):
            end = min(window + _WINDOW, len(text))
            for found in self._pattern.finditer(text, window, end + self._longest):
                if found.start() < end:
                    yield found.start()


def make_trie_pattern(words: Iterable[str]) -> str:
    """A pattern that matches any of the words and prefers longer ones. Common beginnings are matched once."""
    trie: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _write_pattern(trie) if trie else "(?!)"


def _write_pattern(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    branches = [re.escape(character) + _write_pattern(rest) for character, rest in node.items() if character]
    if not branches:
        return ""
    optional = "?" if "" in node else ""
    return f"(?:{'|'.join(branches)}){optional}"


def _is_cut_token(tokenizer: Tokenizer, token: AddedToken, index: int) -> bool:
    text = token.content
    eats_spaces = token.lstrip or token.rstrip or text != text.strip()
    return bool(text) and not eats_spaces and tokenizer.token_bytes(index) == text.encode()


def _find_swallowed(cuts: Iterable[str], tokens: Iterable[str]) -> set[str]:
    """Returns the `cuts` that a token may join to other text: a longer token contains the cut, or a token
    ends with the beginning of the cut."""
    starts: dict[str, set[str]] = {}
    for cut in cuts:
        for length in range(1, len(cut) + 1):
            starts.setdefault(cut[:length], set()).add(cut)
    swallowed: set[str] = set()
    for token in tokens:
        for first in range(len(token)):
            if first:
                swallowed |= starts.get(token[first:], set())
            for last in range(first + 1, len(token) + (first > 0)):
                part = token[first:last]
                if part not in starts:
                    break
                swallowed |= {part} & starts[part]
    return swallowed


def _parts_add_up(tokenizer: Tokenizer, ids: dict[str, int]) -> bool:
    """Checks on a few awkward texts that parts cut at these tokens have the tokens of the whole."""
    for cut in list(ids)[:4]:
        for before in _PROBES:
            for after in _PROBES:
                parts = [tokenizer.encode(part, add_special_tokens=False) for part in (before, cut + after)]
                if tokenizer.encode(before + cut + after, add_special_tokens=False) != b"".join(parts):
                    return False
    return True
