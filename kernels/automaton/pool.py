"""The automata of the loaded grammars, and the state of each slot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    ACTION_COLUMNS,
    DEAD,
    ENTRY_COLUMNS,
    LIST_COLUMNS,
    NO_AUTOMATON,
    NO_MASK,
    STATE_COLUMNS,
    AutomatonTables,
)
from ..common.drafts import DraftRows, Drafts
from ..common.upload import upload
from .layout import (
    ACTION_0,
    ACTIONS,
    CLASS_MAP,
    CLASS_MAPS,
    DEPTH,
    ENTRIES,
    ENTRY_0,
    GRAMMAR,
    GRAMMAR_COLUMNS,
    GRAMMARS,
    LIST_0,
    LIST_TOKENS,
    LISTS,
    MASK_0,
    MASKS,
    NO_TOKENS,
    REGISTERS,
    RETURN_0,
    RETURNS,
    STACK,
    STATE,
    STATE_0,
    STATES,
    TOKEN_0,
)
from .rows import AutomatonRows, PoolTables, SlotRegisters, TokenMask

FIRST_STATES = 1024
FIRST_ENTRIES = 8 * FIRST_STATES
FIRST_ACTIONS = 256
FIRST_RETURNS = 256
FIRST_LISTS = 256
FIRST_LIST_TOKENS = 4096
FIRST_MASKS = 64
FIRST_GRAMMARS = 8


class Arena:
    """A tensor [capacity, *row_shape] with first-fit allocation of rows.

    If no span fits, the tensor at least doubles. That replaces `tensor`, so callers must not keep it.
    """

    def __init__(
        self, capacity: int, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tensor = torch.zeros(capacity, *row_shape, dtype=dtype, device=device)
        self._holes = [(0, capacity)]
        """(start, end) of the free spans, in ascending order, with used rows between them"""

    def add(self, rows: NDArray[Any]) -> int:
        """Copy rows [n ≥ 1, *row_shape] into a free span and return its start."""
        start = self.allocate(len(rows))
        self.write(start, rows)
        return start

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Copy rows into an allocated span."""
        own = np.require(rows, requirements=["C", "W"])  # PyTorch warns if the array is read-only
        (self.tensor[start : start + len(rows)],) = upload([own], self.tensor.device)

    def free(self, start: int, length: int) -> None:
        self._holes = _join(sorted([*self._holes, (start, start + length)]))

    def allocate(self, length: int) -> int:
        """Allocate length ≥ 1 rows and return their start."""
        for i, (start, end) in enumerate(self._holes):
            if end - start >= length:
                self._holes[i : i + 1] = [(start + length, end)] if end - start > length else []
                return start
        self._grow(length)
        return self.allocate(length)

    def _grow(self, length: int) -> None:
        old = len(self.tensor)
        grown = self.tensor.new_zeros(max(2 * old, old + length), *self.tensor.shape[1:])
        grown[:old] = self.tensor
        self.tensor = grown
        self.free(old, len(grown) - old)


def _join(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


@dataclass(slots=True)
class _Loaded:
    row: int
    """the grammar's row in the pool's table of grammars"""
    spans: list[tuple[Arena, int, int]] = field(default_factory=list)
    """the pool's memory that the grammar uses: (arena, start, length in rows)"""

    def add(self, arena: Arena, rows: NDArray[Any]) -> int:
        if not len(rows):
            return 0
        start = arena.add(rows)
        self.spans.append((arena, start, len(rows)))
        return start


class AutomatonPool:
    """The tables of the loaded grammars and the states of slots, on one device.

    vocab_offsets: int32 [vocab + 1]; the bytes of token i are vocab_bytes[offsets[i] : offsets[i + 1]].
    vocab_bytes: uint8.
    eos_ids: tokens that, like tokens without bytes, do not change the state.
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
        self._spans = torch.from_numpy(np.stack([starts, ends], axis=1)).to(device)
        self._bytes = torch.from_numpy(vocab_bytes.copy()).to(device)
        rows, words = registers.masks.shape
        assert words == -(-len(starts) // 32), (words, len(starts))

        def add_arena(capacity: int, *row_shape: int, dtype: torch.dtype = torch.int32) -> Arena:
            return Arena(capacity, row_shape, dtype, self._device)

        self._grammars = add_arena(FIRST_GRAMMARS, GRAMMAR_COLUMNS)
        self._masks = add_arena(rows + FIRST_MASKS, words)
        self._arenas = {
            GRAMMARS: self._grammars,
            CLASS_MAPS: add_arena(FIRST_GRAMMARS, 256, dtype=torch.uint8),
            STATES: add_arena(FIRST_STATES, STATE_COLUMNS),
            ENTRIES: add_arena(FIRST_ENTRIES, ENTRY_COLUMNS),
            ACTIONS: add_arena(FIRST_ACTIONS, ACTION_COLUMNS),
            RETURNS: add_arena(FIRST_RETURNS),
            MASKS: self._masks,
            LISTS: add_arena(FIRST_LISTS, LIST_COLUMNS),
            LIST_TOKENS: add_arena(FIRST_LIST_TOKENS),
        }
        """those of `PoolTables` that grow, in its order"""
        first = self._masks.allocate(1)
        assert first == NO_TOKENS
        self._own_masks = self._masks.allocate(rows)
        """on CPUs: index of the mask of a step's first row. A step writes a row's mask if its state has
        lists."""
        self._registers = registers
        self._loaded: dict[int, _Loaded] = {}
        self._find_tables()

    def load(self, grammar_id: int, tables: AutomatonTables) -> None:
        """Add a grammar under an unused id."""
        assert grammar_id not in self._loaded, grammar_id
        row = self._grammars.allocate(1)
        loaded = self._loaded[grammar_id] = _Loaded(row, [(self._grammars, row, 1)])
        columns = np.zeros((1, GRAMMAR_COLUMNS), np.int32)
        for column, table, rows in (
            (CLASS_MAP, CLASS_MAPS, tables.class_of_byte[None]),
            (STATE_0, STATES, tables.states),
            (ENTRY_0, ENTRIES, tables.entries),
            (ACTION_0, ACTIONS, tables.actions),
            (RETURN_0, RETURNS, tables.returns),
            (MASK_0, MASKS, tables.masks),
            (LIST_0, LISTS, tables.lists),
            (TOKEN_0, LIST_TOKENS, tables.list_tokens),
        ):
            columns[0, column] = loaded.add(self._arenas[table], rows)
        self._grammars.write(row, columns)
        self._find_tables()

    def drop(self, grammar_id: int) -> None:
        """Free a grammar's space. No row may be in its states."""
        for arena, start, length in self._loaded.pop(grammar_id).spans:
            arena.free(start, length)

    def enter(self, slot: int, grammar_id: int, state: int, stack: Sequence[int] = ()) -> None:
        """Set a slot's grammar, state and stack, bottom first."""
        registers = np.zeros(REGISTERS, np.int32)
        registers[STATE] = state
        registers[DEPTH] = len(stack)
        registers[GRAMMAR] = self._loaded[grammar_id].row
        registers[STACK : STACK + len(stack)] = stack
        (on_device,) = upload([registers], self._device)
        self._registers.values[slot] = on_device
        self._registers.follow(slot, follows=True)

    def leave(self, slot: int) -> None:
        self._registers.values[slot, STATE] = NO_AUTOMATON
        self._registers.follow(slot, follows=False)

    @property
    def registers(self) -> SlotRegisters:
        return self._registers

    @property
    def addresses(self) -> NDArray[np.int64]:
        """The addresses of the tables, in the order of `PoolTables`; valid until the next `load`."""
        return self._addresses

    @property
    def own_masks(self) -> int:
        """On a CPU: the index of the first row's mask in the masks' table; those of the other rows follow."""
        return self._own_masks

    def rows(self, slots: NDArray[np.int32], drafts: DraftRows | None = None) -> AutomatonRows:
        """The rows of a step that sample for slots [rows], which are distinct if no slot has drafts."""
        index = self._registers.mask_index(slots)
        on_device, addresses, index_on_device = upload([slots, self._addresses, index], self._device)
        if drafts is None:
            return AutomatonRows(on_device, self._registers.values, self._tables, addresses, index_on_device)
        numbers, ahead = self._registers.row_numbers[: len(slots)], self._registers.ahead
        assert ahead is not None, "drafts were not announced"
        if self._masks.tensor.is_cuda:
            from . import cuda

            offsets, tokens = upload([drafts.offsets, drafts.tokens], self._device)
            cuda.step_ahead(on_device, offsets, tokens, self._registers, addresses)
        else:
            from . import cpu

            assert self._tables is not None
            cpu.step_ahead(slots, *drafts, self._registers.values.numpy(), self._tables, ahead.numpy())
        return AutomatonRows(numbers, ahead, self._tables, addresses, index_on_device)

    def count_live(self, drafts: Drafts) -> NDArray[np.int32]:
        """How many of the drafts of each slot its automaton allows, int32 [slots]. On CUDA all,
        because the host does not know the states."""
        if self._tables is None:
            return drafts.counts
        from . import cpu

        live: NDArray[np.int32] = cpu.count_live(*drafts[:3], self._registers.values.numpy(), self._tables)
        return live

    def mask(self, rows: AutomatonRows) -> TokenMask:
        """The rows' masks; valid until the next call, which overwrites them."""
        if self._masks.tensor.is_cuda:
            from . import cuda

            cuda.write_masks(rows.slots, rows.registers, rows.addresses, self._registers.masks)
            return TokenMask(rows.mask_index, self._registers.masks)
        from . import cpu

        return TokenMask(cpu.mask(rows, self._own_masks), self._masks.tensor)

    def _find_tables(self) -> None:
        tables = (self._spans, self._bytes, *(arena.tensor for arena in self._arenas.values()))
        self._addresses = np.array([table.data_ptr() for table in tables], np.int64)
        on_cpu = self._device.type == "cpu"
        self._tables = PoolTables(*(table.numpy() for table in tables)) if on_cpu else None


def smallest_pool(device: torch.device | str, vocab: int, drafts: int = 0) -> AutomatonPool:
    """A pool of one grammar, whose only state forbids all tokens. Slot 0 is in it; no token has bytes."""
    tables = AutomatonTables(
        class_of_byte=np.zeros(256, np.uint8),
        states=np.array([[0, 0, NO_MASK, 0, 0, 0]], np.int32),
        entries=np.array([[DEAD, 0]], np.int32),
        actions=np.zeros((0, ACTION_COLUMNS), np.int32),
        returns=np.zeros(0, np.int32),
        masks=np.zeros((0, -(-vocab // 32)), np.int32),
        lists=np.zeros((1, LIST_COLUMNS), np.int32),
        list_tokens=np.zeros(0, np.int32),
    )
    registers = SlotRegisters(1, vocab, device, drafts)
    pool = AutomatonPool(device, registers, np.zeros(vocab + 1, np.int32), np.zeros(1, np.uint8), [])
    pool.load(0, tables)
    pool.enter(0, 0, 0)
    return pool
