"""The automata of the loaded grammars, and the state of each slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import upload
from .arena import Arena
from .layout import (
    ACTION_COLUMNS,
    CLASS_MAP,
    CLOSE,
    COUNT,
    DEAD,
    DECIDED,
    DEFAULT,
    DEPTH,
    KIND,
    LIST_COLUMNS,
    MASK,
    NO_AUTOMATON,
    OPEN,
    OPENERS,
    OPERAND,
    OWN,
    POP,
    REGISTERS,
    ROOM,
    ROOMY_DEPTH,
    ROW,
    SHARED,
    STACK,
    STACK_DEPTH,
    START,
    STATE,
    STATE_COLUMNS,
    TARGET,
    TOKENS,
    WORDS,
)
from .registers import SlotRegisters
from .rows import AutomatonRows, TokenMask
from .tables import Tables

FIRST_STATES = 1024
FIRST_ENTRIES = 8 * FIRST_STATES
FIRST_ACTIONS = 256
FIRST_RETURNS = 256
FIRST_LISTS = 256
FIRST_LIST_TOKENS = 4096
FIRST_MASKS = 64
FIRST_GRAMMARS = 8


@dataclass(slots=True)
class _Loaded:
    first_state: int
    spans: list[tuple[Arena, int, int]] = field(default_factory=list)
    """(arena, start, length)"""

    def add(self, arena: Arena, rows: NDArray[Any]) -> int:
        if not len(rows):
            return 0
        start = arena.add(rows)
        self.spans.append((arena, start, len(rows)))
        return start


class AutomatonPool:
    """The tables of the loaded grammars and the states of slots, on one device.

    vocab_offsets: int32 [vocab + 1], the bytes of token i being vocab_bytes[offsets[i] : offsets[i + 1]];
    vocab_bytes: uint8; eos_ids: tokens that do not change the state (nor do tokens without bytes).
    A table that is too small doubles and moves: call `rows` and `mask` anew for each step.
    """

    def __init__(
        self,
        device: torch.device | str,
        registers: SlotRegisters,
        vocab_offsets: NDArray[np.int32],
        vocab_bytes: NDArray[np.uint8],
        eos_ids: NDArray[np.int32] | list[int],
    ) -> None:
        self._device = device = torch.device(device)
        starts, ends = vocab_offsets[:-1].copy(), vocab_offsets[1:].copy()
        ends[eos_ids] = starts[eos_ids]
        self._token_lengths = ends - starts
        self._spans = torch.from_numpy(np.stack([starts, ends], axis=1)).to(device)
        self._bytes = torch.from_numpy(vocab_bytes.copy()).to(device)
        slots, words = registers.masks.shape
        assert words == -(-len(starts) // 32), (words, len(starts))
        self._entries = Arena(FIRST_ENTRIES, (2,), torch.int32, device)
        """(the next pooled state, or -1 - a for action a; the state that owns the entry)"""
        self._states = Arena(FIRST_STATES, (STATE_COLUMNS,), torch.int32, device)
        self._actions = Arena(FIRST_ACTIONS, (ACTION_COLUMNS,), torch.int32, device)
        self._returns = Arena(FIRST_RETURNS, (), torch.int32, device)
        self._lists = Arena(FIRST_LISTS, (LIST_COLUMNS,), torch.int32, device)
        self._list_tokens = Arena(FIRST_LIST_TOKENS, (), torch.int32, device)
        self._masks = Arena(slots + FIRST_MASKS, (words,), torch.int32, device)
        self._class_maps = Arena(FIRST_GRAMMARS, (256,), torch.uint8, device)
        self._own_masks = self._masks.allocate(slots)
        """on CPUs: the first of one mask for each slot, for states with lists"""
        self._registers = registers
        self._loaded: dict[int, _Loaded] = {}
        self._add_dead_state(words)
        self._addresses = self._find_tables()

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """int32 [vocab, 2], each token's span of the bytes; uint8 bytes; states int32 [states,
        STATE_COLUMNS]; class maps uint8 [grammars, 256]; entries and their owners int32 [entries, 2]; actions
        int32 [actions, ACTION_COLUMNS]; returns int32."""
        arenas = (self._states, self._class_maps, self._entries, self._actions, self._returns)
        return self._spans, self._bytes, *(arena.tensor for arena in arenas)

    def load(self, grammar_id: int, tables: Tables) -> None:
        """Add a grammar under an unused id."""
        assert grammar_id not in self._loaded, grammar_id
        first_state = self._states.allocate(len(tables.row_starts))
        loaded = _Loaded(first_state, [(self._states, first_state, len(tables.row_starts))])
        self._add_states(loaded, tables)
        self._loaded[grammar_id] = loaded
        self._addresses = self._find_tables()

    def drop(self, grammar_id: int) -> None:
        """Free a grammar's space. No row may be in its states."""
        for arena, start, length in self._loaded.pop(grammar_id).spans:
            arena.free(start, length)

    def enter(self, slot: int, grammar_id: int, state: int, stack: Sequence[int] = ()) -> None:
        """Set a slot's grammar, state (-1: dead) and stack, bottom first."""
        loaded = self._loaded[grammar_id]
        registers = np.zeros(REGISTERS, np.int32)
        registers[STATE] = DEAD if state < 0 else loaded.first_state + state
        registers[DEPTH] = len(stack)
        registers[STACK : STACK + len(stack)] = stack
        (on_device,) = upload([registers], self._device)
        self._registers.values[slot] = on_device

    def leave(self, slot: int) -> None:
        self._registers.values[slot, STATE] = NO_AUTOMATON

    @property
    def addresses(self) -> NDArray[np.int64]:
        """The addresses of the tables, in the order of `layout`; valid until the next `load`."""
        return self._addresses

    def grammar_states(self, grammar_ids: Sequence[int], pooled: NDArray[np.int32]) -> NDArray[np.int32]:
        """The grammars' own numbers of pooled states [rows]; -1 for DEAD."""
        firsts = [self._loaded[grammar].first_state for grammar in grammar_ids]
        return np.where(pooled == DEAD, -1, pooled - np.array(firsts, np.int32)).astype(np.int32)

    def rows(self, slots: NDArray[np.int32]) -> AutomatonRows:
        """The rows of a step that sample for distinct slots [rows]."""
        on_device, addresses = upload([slots, self._addresses], self._device)
        return AutomatonRows(on_device, self._registers.values, self.tables, addresses)

    def mask(self, rows: AutomatonRows) -> TokenMask:
        """The rows' masks; valid until the next call, which overwrites the masks of slots."""
        masks = self._masks.tensor
        if masks.is_cuda:
            from . import cuda

            return TokenMask(cuda.mask(rows, self._registers.masks), self._registers.masks)
        from . import cpu

        parts = (rows, self._lists.tensor, self._list_tokens.tensor, masks, self._own_masks)
        return TokenMask(cpu.mask(*parts), masks)

    def _find_tables(self) -> NDArray[np.int64]:
        arenas = (self._lists, self._list_tokens, self._masks)
        tables = (*self.tables, *(arena.tensor for arena in arenas))
        return np.array([table.data_ptr() for table in tables], np.int64)

    def _add_states(self, loaded: _Loaded, tables: Tables) -> None:
        first_return = loaded.add(self._returns, _pooled_states(tables.returns, loaded.first_state))
        actions = _pooled_actions(tables.actions, loaded.first_state, first_return)
        first_action = loaded.add(self._actions, actions)
        entries = _pooled_entries(tables.entries, loaded.first_state, first_action)
        owners = np.where(tables.owners < 0, NO_AUTOMATON, tables.owners + loaded.first_state)
        first_entry = loaded.add(self._entries, np.stack([entries, owners], axis=1).astype(np.int32))
        rows = np.zeros((len(tables.row_starts), STATE_COLUMNS), np.int32)
        rows[:, ROW] = first_entry + tables.row_starts
        rows[:, DEFAULT] = loaded.first_state + tables.default_state
        rows[:, CLASS_MAP] = loaded.add(self._class_maps, tables.class_of_byte[None])
        first_mask = loaded.add(self._masks, tables.masks)
        known = tables.mask_of_state >= 0
        rows[:, MASK] = np.where(known, first_mask + tables.mask_of_state, self._no_tokens)
        rows[:, [SHARED, OWN, DECIDED]] = tables.lists_of_state + self._add_lists(loaded, tables)
        self._states.write(loaded.first_state, rows)

    def _add_lists(self, loaded: _Loaded, tables: Tables) -> int:
        sizes = np.diff(tables.list_offsets)
        lists = np.zeros((len(sizes), LIST_COLUMNS), np.int32)
        lists[:, START] = tables.list_offsets[:-1] + loaded.add(self._list_tokens, tables.list_tokens)
        lists[:, TOKENS] = sizes - tables.opener_counts
        lists[:, OPENERS] = tables.opener_counts
        lists[:, ROOMY_DEPTH] = STACK_DEPTH - self._longest_opening(tables)
        return loaded.add(self._lists, lists)

    def _longest_opening(self, tables: Tables) -> int:
        """The most stack places that one token pushes, or needs at its end."""
        sizes = np.diff(tables.list_offsets)
        openers = np.repeat(tables.list_offsets[1:] - tables.opener_counts, sizes)
        opens = np.arange(len(tables.list_tokens)) >= openers
        longest = int(self._token_lengths[tables.list_tokens[opens]].max(initial=0))
        opening = tables.actions[:, KIND] == OPEN
        places = 1 + int(tables.actions[opening, WORDS].max(initial=0))
        return longest * places + max(int(tables.actions[:, ROOM].max(initial=0)) - places, 0)

    def _add_dead_state(self, words: int) -> None:
        row = np.zeros((1, STATE_COLUMNS), np.int32)
        row[0, CLASS_MAP] = self._class_maps.add(np.zeros((1, 256), np.uint8))
        row[0, MASK] = self._no_tokens = self._masks.add(np.zeros((1, words), np.int32))
        row[0, ROW] = self._entries.add(np.array([[DEAD, NO_AUTOMATON]], np.int32))
        row[0, [SHARED, OWN, DECIDED]] = self._lists.add(np.zeros((1, LIST_COLUMNS), np.int32))
        state = self._states.add(row)
        assert state == DEAD


def _pooled_states(states: NDArray[np.int32], first_state: int) -> NDArray[np.int32]:
    return np.where(states < 0, DEAD, states + first_state).astype(np.int32)


def _pooled_actions(actions: NDArray[np.int32], first_state: int, first_return: int) -> NDArray[np.int32]:
    """Values on the stack keep the grammar's own numbers: the actions that pop add the offset of its
    returns."""
    pooled = actions.copy()
    kinds = actions[:, KIND]
    returning = (kinds == POP) | (kinds == CLOSE)
    pooled[~returning, TARGET] += first_state
    pooled[kinds == COUNT, OPERAND] += first_state
    pooled[returning, OPERAND] += first_return
    return pooled


def _pooled_entries(entries: NDArray[np.int32], first_state: int, first_action: int) -> NDArray[np.int32]:
    """Actions are numbered from -1 down, as the pool's DEAD is a state."""
    acting = entries + 1 - first_action
    return np.where(entries <= -2, acting, _pooled_states(entries, first_state)).astype(np.int32)
