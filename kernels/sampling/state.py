"""Sampling parameters and history of each slot, from which the batch of a step is gathered.

Parameters and positions live on the host, since the host knows them without reading the device; one small
upload carries a batch. On the device live each slot's last token and, for slots with penalties only, the
tokens seen and counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import (
    GREEDY_BELOW,
    AutomatonRows,
    BannedTokens,
    LogitBias,
    Penalties,
    SamplingBatch,
    TokenMask,
)
from .upload import upload

FIRST_PENALTY_ENTRIES = 4
FILTERS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class SlotSettings:
    temperature: float = 1.0
    top_k: int = 0
    """0: off"""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """any integer; its low 64 bits count"""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    """banned while the output has fewer than min_tokens tokens"""

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class SamplingState:
    """Slots 0 … slots - 1. set, gather → sample → record at each step, release."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.last_tokens = torch.zeros(slots, dtype=torch.int32, device=device)
        """int32 [slots]: the token that each slot sampled (or was given) last"""
        self._vocab = vocab
        self._settings = [SlotSettings(temperature=0.0)] * slots
        self._numbers = np.zeros(slots, _NUMBERS)
        self._history = _TokenHistory(vocab, torch.device(device))

    def set(
        self, slot: int, settings: SlotSettings, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> None:
        """Begin with slot's prompt [n] and the output [m] it already has (m > 0 when resumed)."""
        self._settings[slot] = settings
        self._numbers[slot] = (
            _as_int64(settings.seed),
            len(output),
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
            bool(settings.logit_bias),
            settings.min_tokens if settings.stop_ids else 0,
        )
        self._history.forget(slot)
        if settings.has_penalties:
            self._history.remember(slot, prompt, output)

    def release(self, slot: int) -> None:
        self._settings[slot] = SlotSettings(temperature=0.0)
        self._numbers[slot] = 0
        self._history.forget(slot)

    def append(self, slot: int, tokens: NDArray[np.int32]) -> None:
        """Add tokens [n ≥ 1] that were not sampled (a forced run) to slot's output."""
        self._numbers["position"][slot] += len(tokens)
        self.last_tokens[slot] = int(tokens[-1])
        self._history.count(slot, tokens)

    def gather(
        self,
        slots: NDArray[np.int32],
        mask: TokenMask | None = None,
        host_mask: TokenMask | None = None,
        automata: AutomatonRows | None = None,
    ) -> SamplingBatch:
        """The batch whose row r samples for slots[r]; masks refer to rows of this batch."""
        n = self._numbers[slots]
        warm = n["temperature"] >= GREEDY_BELOW
        filtered = warm & ((n["top_k"] > 0) | (n["top_p"] < 1) | (n["min_p"] > 0))
        # All three or none: the kernels of a GPU are compiled for what there is.
        names = ["seed", "position", "temperature", *(FILTERS if filtered.any() else ())]
        tensors = upload([n[name].copy() for name in names], self.last_tokens.device)
        return SamplingBatch(
            **dict(zip(names, tensors, strict=True)),
            all_greedy=not warm.any(),
            bias=self._bias(slots),
            banned=self._banned(slots),
            mask=mask,
            host_mask=host_mask,
            penalties=self._penalties(slots),
            automata=automata,
        )

    def record(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> None:
        """Add sampled tokens, int32 [rows] on the device, to the outputs of distinct slots [rows]."""
        self._numbers["position"][slots] += 1
        (index,) = upload([slots.astype(np.int64)], self.last_tokens.device)
        self.last_tokens[index] = tokens
        self._history.count_sampled(slots, tokens)

    def _bias(self, slots: NDArray[np.int32]) -> LogitBias | None:
        if not self._numbers["biased"][slots].any():
            return None
        rows = [self._settings[slot].logit_bias for slot in slots]
        ids = np.array([token for row in rows for token in row], np.int32)
        values = np.array([value for row in rows for value in row.values()], np.float32)
        return LogitBias(*upload([_starts(rows), ids, values], self.last_tokens.device))

    def _banned(self, slots: NDArray[np.int32]) -> BannedTokens | None:
        active = self._numbers["position"][slots] < self._numbers["banned_until"][slots]
        if not active.any():
            return None
        rows = [self._settings[slot].stop_ids if on else () for slot, on in zip(slots, active, strict=True)]
        ids = np.array([token for row in rows for token in row], np.int32)
        return BannedTokens(*upload([_starts(rows), ids], self.last_tokens.device))

    def _penalties(self, slots: NDArray[np.int32]) -> Penalties | None:
        entries = self._history.entries(slots)
        if entries is None:
            return None
        settings = [self._settings[slot] for slot in slots]
        numbers = (
            np.array([s.repetition_penalty for s in settings], np.float32),
            np.array([s.presence_penalty for s in settings], np.float32),
            np.array([s.frequency_penalty for s in settings], np.float32),
        )
        entry, repetition, presence, frequency = upload([entries, *numbers], self.last_tokens.device)
        seen, counts = self._history.prompt_seen, self._history.output_counts
        return Penalties(entry, repetition, presence, frequency, seen, counts)


_NUMBERS = np.dtype(
    [
        ("seed", np.int64),
        ("position", np.int32),
        ("temperature", np.float32),
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("biased", np.bool_),
        ("banned_until", np.int32),
    ]
)


def _as_int64(seed: int) -> int:
    """The low 64 bits of seed as a signed number."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _starts(rows: Sequence[Mapping[int, float] | Sequence[int]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, rows)], dtype=np.int32)


class _TokenHistory:
    """Prompt bits and output counts of the slots with penalties; the tensors grow with their number."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        words = -(-vocab // 32)
        self.prompt_seen = torch.zeros(0, words, dtype=torch.int32, device=device)
        self.output_counts = torch.zeros(0, vocab, dtype=torch.int32, device=device)
        self._entry_of_slot: dict[int, int] = {}
        self._free: list[int] = []

    def remember(self, slot: int, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        entry = self._entry_of_slot[slot] = self._take()
        words = self.prompt_seen.shape[1]
        seen = np.zeros(words * 32, np.uint8)
        seen[prompt] = 1
        self.prompt_seen[entry] = torch.from_numpy(np.packbits(seen, bitorder="little").view(np.int32))
        counts = np.bincount(output, minlength=self._vocab).astype(np.int32)
        self.output_counts[entry] = torch.from_numpy(counts)

    def forget(self, slot: int) -> None:
        if slot in self._entry_of_slot:
            self._free.append(self._entry_of_slot.pop(slot))

    def count(self, slot: int, tokens: NDArray[np.int32]) -> None:
        if slot in self._entry_of_slot:
            counts = np.bincount(tokens, minlength=self._vocab).astype(np.int32)
            self.output_counts[self._entry_of_slot[slot]] += torch.from_numpy(counts).to(
                self.output_counts.device
            )

    def count_sampled(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> None:
        entries = self.entries(slots)
        if entries is None:
            return
        rows = np.flatnonzero(entries >= 0)
        row_index, start = upload([rows, entries[rows].astype(np.int64) * self._vocab], tokens.device)
        self.output_counts.view(-1)[start + tokens[row_index]] += 1

    def entries(self, slots: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """int32 [rows], -1 for slots without penalties; None if all are."""
        if not self._entry_of_slot or self._entry_of_slot.keys().isdisjoint(slots.tolist()):
            return None
        return np.array([self._entry_of_slot.get(slot, -1) for slot in slots.tolist()], np.int32)

    def _take(self) -> int:
        if not self._free:
            used = len(self.output_counts)
            size = max(FIRST_PENALTY_ENTRIES, 2 * used)
            self.prompt_seen = _grown(self.prompt_seen, size)
            self.output_counts = _grown(self.output_counts, size)
            self._free = list(range(used, size))
        return self._free.pop()


def _grown(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    grown = tensor.new_zeros(rows, tensor.shape[1])
    grown[: len(tensor)] = tensor
    return grown
