"""Declared property names as a trie of bytes, which the nodes of an object share.

Tries are immutable: adding a name copies the path to it. If undeclared names are allowed, a declared name
that was read stays in the trie with the value `TAKEN`, so that it can't come again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..lexical.json_string_bytes import Block

TAKEN = -(1 << 30)


@dataclass(eq=False, slots=True)
class NameTrie:
    """A trie of names. `value` is the state after the closing quote, which follows `tail`; a trie with a tail
    has no children. `base`: the state of an undeclared name with the same bytes, or -1. `below`: in an
    unordered object, the bits of the names below this node."""

    children: dict[int, NameTrie]
    value: int | None
    base: int
    below: int = 0
    tail: bytes = b""

    @property
    def is_blank(self) -> bool:
        return self.value is None and not self.children


class Names:
    """Makes tries over one automaton of undeclared names, or over none."""

    def __init__(self, block: Block | None) -> None:
        self._block = block
        self._rows: dict[int, list[int]] = {}
        self.empty = NameTrie({}, None, 0 if block is not None else -1)
        self._known: dict[tuple[int, str, int, int], NameTrie] = {}

    def add(self, trie: NameTrie, name: str, value: int, bits: int = 0) -> NameTrie:
        key = (id(trie), name, value, bits)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (
                self._with_text(trie, name.encode(), value, bits)
                if has_one_form(name)
                else self._with(trie, [_forms(letter) for letter in name], 0, value, bits)
            )
        return known

    def following(self, base: int, byte: int) -> int:
        """The state of an undeclared name after one more byte, or -1."""
        if self._block is None or base < 0:
            return -1
        row = self._rows.get(base)
        if row is None:
            row = self._rows[base] = self._block.transitions[base, self._block.class_of_byte].tolist()
        return max(-1, row[byte])

    def _with_text(self, trie: NameTrie, text: bytes, value: int, bits: int) -> NameTrie:
        if trie.is_blank or (text and trie.tail == text):
            return NameTrie({}, value, trie.base, trie.below | bits, text)
        if not text:
            return self._ending(trie, value, bits)
        child = self._with_text(self._child(trie, text[0]), text[1:], value, bits)
        return self._with_child(trie, text[0], child, bits)

    def _ending(self, trie: NameTrie, value: int, bits: int) -> NameTrie:
        return NameTrie(self._children(trie), value, trie.base, trie.below | bits)

    def _with_child(self, trie: NameTrie, byte: int, child: NameTrie, bits: int) -> NameTrie:
        value = None if trie.tail else trie.value
        return NameTrie({**self._children(trie), byte: child}, value, trie.base, trie.below | bits)

    def _children(self, trie: NameTrie) -> dict[int, NameTrie]:
        return {trie.tail[0]: self._child(trie, trie.tail[0])} if trie.tail else trie.children

    def _with(
        self, trie: NameTrie, units: list[list[bytes]], position: int, value: int, bits: int
    ) -> NameTrie:
        if position == len(units):
            return self._ending(trie, value, bits)
        first = units[position][0]
        if len(units[position]) == 1 and len(first) == 1:
            child = self._with(self._child(trie, first[0]), units, position + 1, value, bits)
            return self._with_child(trie, first[0], child, bits)
        old = self._descend(trie, first)
        new = self._with(old, units, position + 1, value, bits)
        for form in units[position]:
            trie = self._replace(trie, form, 0, new, bits)
        return trie

    def _replace(self, trie: NameTrie, form: bytes, position: int, new: NameTrie, bits: int) -> NameTrie:
        if position == len(form):
            return new
        byte = form[position]
        child = self._replace(self._child(trie, byte), form, position + 1, new, bits)
        return self._with_child(trie, byte, child, bits)

    def _descend(self, trie: NameTrie, form: bytes) -> NameTrie:
        for byte in form:
            trie = self._child(trie, byte)
        return trie

    def _child(self, trie: NameTrie, byte: int) -> NameTrie:
        if trie.tail and trie.tail[0] == byte:
            return NameTrie({}, trie.value, self.following(trie.base, byte), trie.below, trie.tail[1:])
        known = trie.children.get(byte)
        return known if known is not None else NameTrie({}, None, self.following(trie.base, byte))


_ONE_BYTE_EACH = re.compile(r"[ !#-\[\]-~]*")
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _forms(letter: str) -> list[bytes]:
    """The bytes that JSON writers use for a code point in a name: itself, and its escape if they might use
    one."""
    if letter in _SHORT:
        return [_SHORT[letter].encode()]
    code = ord(letter)
    if 0x20 <= code < 0x7F:
        return [letter.encode()]
    if code < 0x20:
        return [f"\\u{code:04x}".encode()]
    units = letter.encode("utf-16-be")
    escaped = "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return [letter.encode(), escaped.encode()]


def has_one_form(name: str) -> bool:
    """Whether each code point of the name has a single form, of one byte."""
    return _ONE_BYTE_EACH.fullmatch(name) is not None


def materialize(
    trie: NameTrie, known: dict[int, int], new_state: Callable[[NameTrie, dict[int, int]], int]
) -> int:
    """Makes the states of a trie and returns its own, with `new_state(trie, states of its children)`."""
    pending = [trie]
    while pending:
        current = pending[-1]
        if id(current) in known:
            pending.pop()
            continue
        missing = [child for child in current.children.values() if id(child) not in known]
        if missing:
            pending += missing
            continue
        states = {byte: known[id(child)] for byte, child in current.children.items()}
        known[id(current)] = new_state(current, states)
        pending.pop()
    return known[id(trie)]
