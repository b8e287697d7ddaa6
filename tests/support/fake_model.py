"""A model process without a model: pages hold token ids, and the next token is a hash of these."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from arbora.radix_cache import Reach
from arbora.runtime.messages import (
    NO_STATE,
    DiscardPages,
    DropAdapter,
    DropGrammar,
    FlushPages,
    ForgetPages,
    LoadGrammar,
    Message,
    ReadAdapter,
    Row,
    RowVector,
    SavePages,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
)
from fake_store import FakeStore
from pages_in_flight import PagesInFlight

VOCAB = 64
EOS = 0
REJECTED = 1  # a token that a row computes and does not sample


def next_token(tokens: list[int], seed: int = 0) -> int:
    """The token after `tokens`; about one in 64 is the end."""
    return zlib.crc32(np.array([seed, *tokens], np.int32).tobytes()) % VOCAB


def reply_alone(prompt: list[int], max_tokens: int, seed: int = 0) -> list[int]:
    """The tokens that a request must get in any batch."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, seed))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


def long_reply_prompt(length: int, tokens: int, salt: int = 0) -> list[int]:
    """A prompt whose reply doesn't end by itself within `tokens`."""
    for start in range(1000):
        prompt = [1 + (start + salt * 7 + i * 5) % 60 for i in range(length)]
        if EOS not in reply_alone(prompt, tokens):
            return prompt
    raise AssertionError("no such prompt")


def _hash(tokens: list[int]) -> int:
    return zlib.crc32(pack(tokens))


def unpack(tokens: bytes) -> list[int]:
    unpacked: list[int] = np.frombuffer(tokens, np.int32).tolist()
    return unpacked


def pack(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


@dataclass
class _Slot:
    seed: int
    pages: list[int] = field(default_factory=list)
    windows: list[list[int]] = field(default_factory=list)  # page tables of windowed groups
    length: int = 0  # tokens with KV
    last: int = -1
    place: int = NO_STATE  # of the tokens that its recurrent state has seen


class Automata(Protocol):
    """Rows that automata follow, with the messages of the model process."""

    def load(self, message: LoadGrammar) -> None: ...

    def set_up(self, setup: SlotSetup) -> None: ...

    def choose(self, slot: int, number: int) -> tuple[int, int]:
        """The allowed token of that number (modulo how many there are), and the state after it."""


class FakeModel:
    """Carries out steps in order, as the model process would, and checks its messages."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        automata: Automata | None = None,
        most_stored: int = 0,
        count: Callable[[int], int] = lambda most: most,
        windows: Sequence[tuple[Reach, int]] = (),
    ) -> None:
        """count: how many tokens a row samples that may sample at most so many; 0 only of several.
        windows: see `PrefixCache`"""
        self.automata = automata
        self._count = count
        self.page_size = page_size
        self.contents = np.full((num_pages, page_size), -1, np.int64)
        self.states: dict[int, list[int]] = {}  # the tokens of each recurrent state, by place
        self._reaches = [reach for reach, _ in windows]
        self._windows = [np.full((pages, page_size), -1, np.int64) for _, pages in windows]
        """for each token a hash of all tokens up to it"""
        self.store = FakeStore([self.contents, *self._windows], most_stored, self.states)
        self.slots: dict[int, _Slot] = {}
        self.plans: list[StepPlan] = []
        self._in_flight = PagesInFlight(page_size, self._reaches)
        self.saves_after: dict[int, list[SavePages]] = {}  # by the step that they follow
        self.masks: dict[int, StepMasks] = {}
        self.loaded: list[int] = []  # grammar ids, once for each load
        self.grammars: dict[int, LoadGrammar] = {}  # loaded ones
        self.adapter_orders: list[Message] = []
        self.texts: dict[int, list[int]] = {}
        """the tokens from which drafts of a slot may be made, until its request has ended"""
        self.ended: list[list[int]] = []  # prompts and replies of ended requests, from which others may draft

    def receive(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, StepPlan):
                self.plans.append(message)
                self._in_flight.begin(message)
            elif isinstance(message, StepMasks):
                self.masks[message.step] = message
            elif isinstance(message, LoadGrammar):
                self.loaded.append(message.grammar)
                self.grammars[message.grammar] = message
                if self.automata is not None:
                    self.automata.load(message)
            elif isinstance(message, DropGrammar):
                del self.grammars[message.grammar]
            elif isinstance(message, ReadAdapter | DropAdapter):
                self.adapter_orders.append(message)
            elif isinstance(message, SavePages) and self.plans:
                self.saves_after.setdefault(self.plans[-1].step, []).append(message)
            elif isinstance(message, SavePages):
                self._save(message)
            elif isinstance(message, ForgetPages):
                self.store.forget(message)
            elif isinstance(message, DiscardPages):
                self.store.discard(message)
            elif isinstance(message, FlushPages):
                self.store.end(message.fetches_over)
                self._save(message)

    def _save(self, message: SavePages | FlushPages) -> None:
        self.store.save(message.saves)
        self.store.save_states(message.states)

    def run_step(self) -> StepResult:
        """Runs the oldest plan."""
        plan = self.plans.pop(0)
        self._in_flight.end(plan.step)
        if any(row.host_mask for row in plan.rows):
            assert plan.step in self.masks, "the masks of the oldest step must have been sent"
        for end in plan.ended:
            text = self.texts.pop(end.slot)
            assert end.length <= len(text), "the end of a request names tokens that the process does not have"
            self.ended.append(text[: end.length])
        for setup in plan.setups:
            self._note_context(setup)
            assert setup.grammar is None or setup.grammar in self.grammars, "a row's grammar must be loaded"
            windows: list[list[int]] = [[] for _ in self._windows]
            self.slots[setup.slot] = _Slot(setup.sampling.seed, windows=windows, place=setup.state_place)
            if self.automata is not None:
                self.automata.set_up(setup)
        self.store.save(plan.saves)
        self.store.save_states(plan.saved_states)
        for copy in plan.copies:
            contents = [self.contents, *self._windows][copy.group]
            contents[copy.destination] = contents[copy.source]
        self.store.restore(plan.restores)
        self.store.restore_states(plan.restored_states)
        self.store.end(plan.fetches_over)
        counts, sampled = [], []
        for row in plan.rows:
            if row.load_state != NO_STATE:
                self.states[self.slots[row.slot].place] = list(self.states[row.load_state])
        starts = [self._begin(row) for row in plan.rows]
        for row in plan.rows:
            counts.append(self._choose_count(row))
            for offset in range(counts[-1]):
                if offset > 0 or not row.tokens:
                    self._write(row.slot, [self.slots[row.slot].last])
                sampled.append(self._sample(plan.step, row.slot))
            self._reject(row, counts[-1])
        for row in plan.rows:
            if row.save_state != NO_STATE:
                self.states[row.save_state] = list(self.states[self.slots[row.slot].place])
        self._check_groups(plan, starts)
        for message in self.saves_after.pop(plan.step, []):
            self._save(message)
        forward = sum(max(1, len(row.tokens) // 4) + max(0, row.samples - 1) for row in plan.rows)
        return StepResult(
            step=plan.step,
            counts=pack(counts),
            tokens=pack([token for token, _ in sampled]),
            states=pack([state for _, state in sampled]),
            elapsed_ms=float(forward),
            vectors=[
                RowVector(row.slot, pack(self._held(self.slots[row.slot]))) for row in plan.rows if row.pools
            ],
            restored_ms=float(sum(len(unpack(part.pages)) for part in plan.restores if part.group == 0)),
        )

    def _note_context(self, setup: SlotSetup) -> None:
        """Keeps the tokens for drafts, up to those that the slot samples."""
        before = self.texts.pop(setup.slot, [])[: setup.context_start]
        assert len(before) == setup.context_start, "a context goes on behind tokens that the process has"
        if setup.context:
            self.texts[setup.slot] = before + unpack(setup.context)

    def _choose_count(self, row: Row) -> int:
        return self._count(row.samples) if row.samples and not row.host_mask else min(row.samples, 1)

    def _reject(self, row: Row, count: int) -> None:
        """Writes the drafts that the row does not sample, and goes back behind its last kept token."""
        slot = self.slots[row.slot]
        rejected = max(0, row.samples - max(1, count)) if row.tokens else row.samples - count
        self._write(row.slot, [REJECTED] * rejected)
        slot.length -= rejected
        if row.tokens and row.samples and not count:
            slot.length, slot.last = slot.length - 1, unpack(row.tokens)[-1]

    def _begin(self, row: Row) -> int:
        """Writes the tokens of a chunk. Returns where the row begins."""
        slot = self.slots[row.slot]
        slot.pages += unpack(row.new_pages)
        for table, pages in zip(slot.windows, row.new_window_pages, strict=True):
            table += unpack(pages)
        if row.tokens:
            slot.length = row.start
        start = slot.length
        if slot.place != NO_STATE and start == 0:
            self.states[slot.place] = []
        self._write(row.slot, unpack(row.tokens))
        return start

    def _write(self, slot_number: int, tokens: list[int]) -> None:
        slot = self.slots[slot_number]
        if slot.place != NO_STATE:
            state = self.states[slot.place]
            assert state == self._held(slot), "the state has seen exactly the tokens before"
            state += tokens
        for position, token in enumerate(tokens, slot.length):
            self.contents[slot.pages[position // self.page_size], position % self.page_size] = token
        first, slot.length = slot.length, slot.length + len(tokens)
        held = self._held(slot)
        for contents, table in zip(self._windows, slot.windows, strict=True):
            for position in range(first, slot.length):
                page, offset = divmod(position, self.page_size)
                contents[table[page], offset] = _hash(held[: position + 1])
        if tokens:
            self._check_windows(slot, first)

    def _check_windows(self, slot: _Slot, first: int) -> None:
        """Every token that the row computes, from position `first` on, sees the sequence's own tokens."""
        held = self._held(slot)
        for reach, contents, table in zip(self._reaches, self._windows, slot.windows, strict=True):
            for position in range(reach.find_first(first), slot.length):
                page, offset = divmod(position, self.page_size)
                found = contents[table[page], offset]
                assert found == _hash(held[: position + 1]), "a row reads a windowed page that it has lost"

    def _held(self, slot: _Slot) -> list[int]:
        held: list[int] = self.contents[slot.pages].reshape(-1)[: slot.length].tolist()
        return held

    def _check_groups(self, plan: StepPlan, starts: list[int]) -> None:
        for group in plan.groups:
            members = slice(group.first_row, group.first_row + group.rows)
            rows = plan.rows[members]
            assert len(rows) == group.rows and min(starts[members]) >= group.shared_tokens
            pages = group.shared_tokens // self.page_size
            assert len({tuple(self.slots[row.slot].pages[:pages]) for row in rows}) == 1

    def _sample(self, step: int, slot_number: int) -> tuple[int, int]:
        """The slot's next token, and its automaton's state after it."""
        slot = self.slots[slot_number]
        held = self._held(slot)
        assert -1 not in held, "a row reads KV that was never written"
        token = next_token(held, slot.seed)
        masks = self.masks.get(step)
        if masks is not None and slot_number in unpack(masks.slots):
            row = np.frombuffer(masks.masks, np.uint32).reshape(len(unpack(masks.slots)), -1)
            allowed = np.unpackbits(
                row[unpack(masks.slots).index(slot_number)].view(np.uint8), bitorder="little"
            )
            choices = np.flatnonzero(allowed)
            token = int(choices[token % len(choices)])
        slot.last, state = (token, -1) if self.automata is None else self.automata.choose(slot_number, token)
        text = self.texts.get(slot_number)
        if text is not None:
            assert text == held, "drafts are made from the slot's own tokens"
            text.append(slot.last)
        return slot.last, state
