"""Where a text can be cut so that its pieces, tokenized one by one, give the tokens of the whole."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokenizers import AddedToken

from ...runtime.messages import Tokens
from .tokenizer import Tokenizer

_PROBES = ("Hello ", " a  b\n", "\n\nx", "é", " ", "▁", "")


class Split(NamedTuple):
    """A piece of text, or the added token (`cut`) that follows it."""

    text: str
    cut: int | None


class CutPoints:
    """Added tokens that split a text before anything else looks at it.

    `tokenizers` takes them out of the raw text first, the longest of the leftmost, then works on what
    is left between them, piece by piece. Tokens that eat the spaces around them, match whole words
    only, or are looked for in normalized text don't serve as cuts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens
        raw = {token.content: index for index, token in added.items() if not token.normalized}
        self._pattern = _leftmost_longest(list(raw))
        self.ids = {text: index for text, index in raw.items() if _cuts(tokenizer, added[index], index)}
        self._any_cut = next(iter(self.ids), "")
        words = any(token.single_word for token in added.values())
        if words or not self.ids or not self._pieces_add_up():
            self.ids = {}

    def split(self, text: str) -> list[Split]:
        """Pieces in order, empty ones included: a text with n cuts has n + 1 pieces."""
        splits: list[Split] = []
        start = 0
        for match in self._pattern.finditer(text):
            cut = self.ids.get(match[0])
            if cut is not None:
                splits.append(Split(text[start : match.start()], cut))
                start = match.end()
        return [*splits, Split(text[start:], None)]

    def encode_inner(self, text: str) -> Tokens:
        """Tokens of a piece that stands behind a cut."""
        return self._tokenizer.encode(self._any_cut + text, add_special_tokens=False)[4:]

    def _pieces_add_up(self) -> bool:
        """Trust, but verify: the rules above hold for this tokenizer on a few awkward texts."""
        for cut, index in list(self.ids.items())[:4]:
            for before in _PROBES:
                for after in _PROBES:
                    whole = self._tokenizer.encode(before + cut + after, add_special_tokens=False)
                    first = self._tokenizer.encode(before, add_special_tokens=False)
                    if whole != first + index.to_bytes(4, "little") + self.encode_inner(after):
                        return False
        return True


def _cuts(tokenizer: Tokenizer, token: AddedToken, index: int) -> bool:
    text = token.content
    eats_spaces = token.lstrip or token.rstrip or text != text.strip()
    return bool(text) and not eats_spaces and tokenizer.token_bytes(index) == text.encode()


def _leftmost_longest(words: list[str]) -> re.Pattern[str]:
    """A trie as a regex: thousands of tokens with a common start cost no more than one."""
    trie: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in filter(None, words):
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_trie_pattern(trie) if trie else "(?!)")


def _trie_pattern(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    branches = [re.escape(character) + _trie_pattern(rest) for character, rest in node.items() if character]
    if not branches:
        return ""
    optional = "?" if "" in node else ""
    return f"(?:{'|'.join(branches)}){optional}"
