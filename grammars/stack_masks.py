"""Token masks for automata with a stack.

For each state a mask of the tokens that the state alone allows, a *context* list of those whose bytes
pop below the state's own level, to be decided over the row's real stack, and a list of *openers*,
allowed tokens that need room: they are dead where the stack is nearly full.

Inside a string almost every token leads back to where it began. Those masks are computed once for a
vocabulary and each way of spelling; only what follows a closing quote differs from state to state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .stack_automaton import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    TAIL,
    StackAutomaton,
)
from .token_trie import TokenTrie, trie_of

_QUOTE = 0x22
_LONG = -2
_COUNTS = (COUNT, COUNT_CALL)
_SETS = (CLOSE, SEE, NEED)
_PUSHING = (PUSH, CALL, COUNT_CALL, OPEN)
_UNTOUCHED = np.empty(0, np.bool_)
_NO_TOKENS = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class StateMask:
    """`words` has a bit for each token that is allowed; `context` and `openers` are token ids, int32."""

    words: NDArray[np.int32]
    context: NDArray[np.int32]
    openers: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Body:
    """Tokens that stay inside a string; those that leave it, by what they have after the quote."""

    words: NDArray[np.uint32]
    closing: NDArray[np.int32]
    """tokens that end with the quote"""
    rests: TokenTrie
    long: NDArray[np.int32]
    """tokens with more code points than a count is sure to leave"""


class StackMasks:
    """Makes masks for one vocabulary."""

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._bodies: dict[int, _Body] = {}
        self._context = np.empty(len(trie.tokens), np.int32)
        self._openers = np.empty(len(trie.tokens), np.int32)

    def of(self, automaton: StackAutomaton, state: int) -> StateMask:
        words = np.zeros(self._trie.mask_words, np.uint32)
        like = int(automaton.like_state[state])
        if automaton.body_of_state[like]:
            lists = self._from_body(automaton, state, like, words)
        else:
            lists = self._walked(automaton, self._trie, state, words)
        if automaton.accepting[state]:
            _set_bits(words, self._trie.eos)
        return StateMask(words.view(np.int32), *lists)

    def _from_body(
        self, automaton: StackAutomaton, state: int, body: int, words: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        shared = self._body(automaton, body)
        words[:] = shared.words
        after = automaton.step(body, [0], _QUOTE)
        parts = [(shared.long, _NO_TOKENS)]
        if after >= 0:
            _set_bits(words, shared.closing)
            parts.append(self._walked(automaton, shared.rests, after, words))
        if state != body:
            parts = self._patched(automaton, state, body, words, parts)
        context, openers = zip(*parts, strict=True)
        return np.concatenate(context), np.concatenate(openers)

    def _patched(
        self,
        automaton: StackAutomaton,
        state: int,
        body: int,
        words: NDArray[np.uint32],
        parts: list[tuple[NDArray[np.int32], NDArray[np.int32]]],
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Walks the tokens that part from what the body allows, until they are back in it."""
        touched = np.zeros(self._trie.mask_words * 32, np.bool_)
        own = self._walked(automaton, self._trie, state, words, body, touched)
        kept = [tuple(each[~touched[each]] for each in lists) for lists in parts]
        return [*kept, own]  # type: ignore[list-item]

    def _walked(
        self,
        automaton: StackAutomaton,
        trie: TokenTrie,
        state: int,
        words: NDArray[np.uint32],
        body: int = -1,
        touched: NDArray[np.bool_] = _UNTOUCHED,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Sets the bits of tokens that lead somewhere from `state`; returns context and openers.

        With a `body`, `words` holds its mask already: only tokens are looked at, and marked as touched,
        that lead somewhere else.
        """
        found, opening = _walk(
            trie.byte, trie.depth, trie.ends, trie.token_starts, trie.tokens, trie.max_depth,
            automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns,
            state, words, self._context, self._openers, body, touched,
        )  # fmt: skip
        return self._context[:found].copy(), self._openers[:opening].copy()

    def _body(self, automaton: StackAutomaton, state: int) -> _Body:
        kind = int(automaton.body_of_state[state])
        if kind not in self._bodies:
            self._bodies[kind] = self._made_body(automaton, state)
        return self._bodies[kind]

    def _made_body(self, automaton: StackAutomaton, state: int) -> _Body:
        """Walks the body with a quote that leads nowhere, noting where tokens meet it."""
        trie = self._trie
        words = np.zeros(trie.mask_words, np.uint32)
        quote_at = np.full(len(trie.tokens), -1, np.int32)
        _walk_body(
            trie.byte, trie.depth, trie.ends, trie.token_starts, trie.tokens, trie.max_depth,
            automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns,
            state, words, quote_at,
        )  # fmt: skip
        closing, rests = [], []
        texts = _texts(trie, np.flatnonzero(quote_at >= 0))
        for position, text in texts.items():
            rest = text[quote_at[position] + 1 :]
            if rest:
                rests.append((rest, int(trie.tokens[position])))
            else:
                closing.append(int(trie.tokens[position]))
        long = trie.tokens[quote_at == _LONG]
        return _Body(words, np.array(closing, np.int32), trie_of(rests, (), trie.mask_words * 32), long)


def _set_bits(words: NDArray[np.uint32], tokens: NDArray[np.int32]) -> None:
    np.bitwise_or.at(words, tokens >> 5, np.uint32(1) << (tokens & 31).astype(np.uint32))


def _texts(trie: TokenTrie, positions: NDArray[np.int64]) -> dict[int, bytes]:
    """The spelling of the tokens at these positions of `trie.tokens`."""
    nodes = np.searchsorted(trie.token_starts, positions, "right") - 1
    texts: dict[int, bytes] = {}
    for position, node in zip(positions.tolist(), nodes.tolist(), strict=True):
        text = bytearray([trie.byte[node]])
        level = int(trie.depth[node])
        while level:
            node -= 1
            if trie.depth[node] == level - 1:
                level -= 1
                text.append(trie.byte[node])
        texts[position] = bytes(text[::-1])
    return texts


@njit(cache=True, nogil=True)
def _walk(  # type: ignore[no-untyped-def]
    byte, depth, ends, token_starts, tokens, max_depth,
    transitions, class_of_byte, actions, returns, state, words, context, openers, body, touched,
):  # fmt: skip
    """Frames of the local stack are kept by the level at which they were pushed, `top` by level."""
    states = np.empty(max_depth + 1, np.int32)
    top = np.empty(max_depth + 1, np.int32)
    below = np.empty(2 * max_depth + 2, np.int32)
    value = np.empty(2 * max_depth + 2, np.int32)
    pushed = np.zeros(max_depth + 1, np.bool_)
    units = np.zeros(max_depth + 1, np.int32)
    states[0] = state
    top[0] = -1
    found = 0
    opening = 0
    node = 0
    while node < len(byte):
        level = depth[node]
        entry = transitions[states[level], class_of_byte[byte[node]]]
        frame = top[level]
        opens = pushed[level]
        counted = units[level]
        if entry < DEAD:
            action = -2 - entry
            kind = actions[action, 0]
            target = actions[action, 1]
            operand = actions[action, 2]
            is_count = kind in _COUNTS
            is_unknown = kind == POP or kind in _SETS or (is_count and counted == TAIL)
            if frame < 0 and is_unknown:
                for position in range(token_starts[node], token_starts[ends[node]]):
                    token = tokens[position]
                    context[found] = token
                    found += 1
                    if body >= 0:
                        touched[token] = True
                        words[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
                node = ends[node]
                continue
            entry = target
            if kind == POP:
                entry = returns[value[frame] + operand]
                frame = below[frame]
            elif kind == CLOSE:
                if value[frame] & target == target:
                    frame = below[frame]
                    entry = returns[value[frame] + operand]
                    frame = below[frame]
                else:
                    entry = DEAD
            elif kind == NEED:
                if value[frame] & operand == operand:
                    entry = DEAD
            elif kind == SEE:
                if value[frame] >> operand & 1:
                    entry = DEAD
                value[2 * level] = value[frame] | (1 << operand)
                below[2 * level] = below[frame]
                frame = 2 * level
            elif kind == DROP:
                frame = below[frame] if frame >= 0 else -1
                counted = 0
            elif is_count and frame < 0:
                counted += 1
            elif is_count or kind == OPEN:
                left = value[frame] - 1 if is_count else operand
                value[2 * level] = left
                below[2 * level] = below[frame] if is_count else frame
                frame = 2 * level
                if kind == OPEN:
                    operand = 0
                elif left == 0:
                    operand += 1
                    if kind == COUNT:
                        entry = operand - 1
            opens = opens or actions[action, 3] >= 0
            if kind in _PUSHING:
                value[2 * level + 1] = operand
                below[2 * level + 1] = frame
                frame = 2 * level + 1
        if entry < 0 and body >= 0:
            for position in range(token_starts[node], token_starts[ends[node]]):
                token = tokens[position]
                touched[token] = True
                words[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
        if entry < 0 or (entry == body and frame < 0 and not opens):
            node = ends[node]
            continue
        states[level + 1] = entry
        top[level + 1] = frame
        pushed[level + 1] = opens
        units[level + 1] = counted
        for position in range(token_starts[node], token_starts[node + 1]):
            token = tokens[position]
            words[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
            if body >= 0:
                touched[token] = True
            if opens:
                openers[opening] = token
                opening += 1
        node += 1
    return found, opening


@njit(cache=True, nogil=True)
def _walk_body(  # type: ignore[no-untyped-def]
    byte, depth, ends, token_starts, tokens, max_depth,
    transitions, class_of_byte, actions, returns, state, words, quote_at,
):  # fmt: skip
    states = np.empty(max_depth + 1, np.int32)
    base = np.empty(max_depth + 1, np.int32)
    units = np.zeros(max_depth + 1, np.int32)
    states[0] = state
    node = 0
    while node < len(byte):
        level = depth[node]
        if states[level] == state and byte[node] == _QUOTE:
            for position in range(token_starts[node], token_starts[ends[node]]):
                quote_at[position] = level
            node = ends[node]
            continue
        entry = transitions[states[level], class_of_byte[byte[node]]]
        base[level + 1] = base[level]
        units[level + 1] = units[level]
        if entry < DEAD:
            kind = actions[-2 - entry, 0]
            if kind in _COUNTS:
                units[level + 1] += 1
                if units[level + 1] > TAIL:
                    for position in range(token_starts[node], token_starts[ends[node]]):
                        quote_at[position] = _LONG
                    node = ends[node]
                    continue
            if kind == POP:
                entry = returns[base[level] + actions[-2 - entry, 2]]
            else:
                base[level + 1] = actions[-2 - entry, 2]
                entry = actions[-2 - entry, 1]
        if entry < 0:
            node = ends[node]
            continue
        states[level + 1] = entry
        for position in range(token_starts[node], token_starts[node + 1]):
            token = tokens[position]
            words[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        node += 1
