"""The sampling parameters and history of each slot, from which the batch of a step is gathered.

Parameters and positions are on the host, which knows them without reading the device; a batch is one small
upload. The device has each slot's last token and, for slots with penalties only, the token history.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton.rows import AutomatonRows, SlotRegisters, TokenMask
from ..common.drafts import DraftRows
from ..common.upload import upload
from .batch import GREEDY_BELOW, BannedTokens, DraftedRows, LogitBias, Penalties, Sampled, SamplingBatch
from .history import TokenHistory

Array: TypeAlias = NDArray[Any]

NUMBERS = ("seed", "position", "temperature")
FILTERS = ("top_k", "top_p", "min_p")
BIAS = ("bias_start", "bias_ids", "bias_values")
BANNED = ("banned_start", "banned_ids")
PENALTIES = ("entry", "repetition", "presence", "frequency")


@dataclass(frozen=True, slots=True)
class SlotSettings:
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps all tokens"""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """any integer, of which the low 64 bits are used"""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    """token ids that are banned until the output has min_tokens tokens"""

    @property
    def is_filtered(self) -> bool:
        """Whether a filter may exclude tokens."""
        filters = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        return filters and self.temperature >= GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class SamplingState:
    """The sampling state of slots 0 … slots - 1. Call `set` for each request, then `gather`, sample and
    `record` at each step."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.padding_slot = slots
        """the slot of padding rows"""
        self.last_tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        """int32 [slots + 1]: the last token that each slot has sampled"""
        self.history = TokenHistory(vocab, torch.device(device))
        self._settings = [SlotSettings(temperature=0.0)] * slots
        self._numbers: dict[str, Array] = {name: np.zeros(slots, dtype) for name, dtype in _NUMBERS.items()}
        self._filtered = np.zeros(slots, np.bool_)
        self._biased: set[int] = set()
        self._banning: set[int] = set()
        """slots whose stop ids are or were banned"""
        self.banned_until = np.zeros(slots, np.int32)
        """[slots]: a slot's stop ids are banned while its output has fewer tokens than this"""

    @property
    def positions(self) -> NDArray[np.int32]:
        """[slots]: how many tokens the output of each has"""
        positions: NDArray[np.int32] = self._numbers["position"]
        return positions

    def set(
        self, slot: int, settings: SlotSettings, prompt: NDArray[np.int32], output: NDArray[np.int32]
    ) -> None:
        """Set a slot's prompt [n] and its output so far [m] (m > 0 after a retraction)."""
        self._settings[slot] = settings
        self._numbers["seed"][slot] = _as_int64(settings.seed)
        self._numbers["position"][slot] = len(output)
        for name in ("temperature", *FILTERS):
            self._numbers[name][slot] = getattr(settings, name)
        self._filtered[slot] = settings.is_filtered
        self.banned_until[slot] = settings.min_tokens if settings.stop_ids else 0
        (self._banning.add if self.banned_until[slot] else self._banning.discard)(slot)
        (self._biased.add if settings.logit_bias else self._biased.discard)(slot)
        self.history.forget(slot)
        if settings.has_penalties:
            self.history.remember(slot, prompt, output)

    def gather(
        self,
        slots: NDArray[np.int32],
        mask: TokenMask | None = None,
        host_mask: TokenMask | None = None,
        automata: AutomatonRows | None = None,
        drafts: DraftRows | None = None,
    ) -> SamplingBatch:
        """The batch whose row r samples for slots[r]; masks refer to rows of this batch."""
        arrays = self.arrays(slots, drafts)
        tensors = upload(list(arrays.values()), self.last_tokens.device)
        return assemble(
            dict(zip(arrays, tensors, strict=True)),
            self.history,
            all_greedy=not (arrays["temperature"] >= GREEDY_BELOW).any(),
            mask=mask,
            host_mask=host_mask,
            automata=automata,
        )

    def arrays(self, slots: NDArray[np.int32], drafts: DraftRows | None = None) -> dict[str, Array]:
        """The arguments of `assemble` for rows that sample for slots, without parts that no row uses."""
        # All three tensors or none, so that fewer variants of the CUDA kernels are compiled.
        filters = FILTERS if self._filtered[slots].any() else ()
        arrays = {name: self._numbers[name][slots] for name in (*NUMBERS, *filters)}
        if drafts is not None:
            arrays["position"] += drafts.offsets
            arrays |= {"offset": drafts.offsets, "draft": drafts.tokens}
        banned = self._banned(slots, arrays["position"])
        return arrays | self._bias(slots) | banned | self._penalties(slots)

    def record(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> None:
        """Add sampled tokens, int32 [rows] on the device, to the outputs of distinct slots [rows]."""
        self.move_on(slots)
        (index,) = upload([slots.astype(np.int64)], self.last_tokens.device)
        self.last_tokens[index] = tokens
        self.history.count_sampled(slots, tokens)

    def move_on(self, slots: NDArray[np.int32]) -> None:
        """The host's part of `record`, for steps whose graph does the device's part."""
        self._numbers["position"][slots] += 1

    def record_drafted(
        self, slots: NDArray[np.int32], drafts: DraftRows, sampled: Sampled, registers: SlotRegisters
    ) -> None:
        """As `record`, for rows of slots that have drafts: adds the tokens that are kept, and keeps the
        registers after them. The position is moved on by one token for each slot: see `accept`."""
        self.move_on(slots)
        entries = self.history.entries(slots)
        arrays = [slots, *drafts, *([] if entries is None else [entries])]
        on_slots, offsets, tokens, *of_history = upload(arrays, self.last_tokens.device)
        rows = DraftedRows(offsets, tokens)
        counted = (of_history[0], self.history.output_counts) if of_history else None
        if sampled.tokens.is_cuda:
            from .record_cuda import record_kept
        else:
            from .record_cpu import record_kept
        record_kept(sampled, on_slots, rows, self.last_tokens, counted, registers)

    def accept(self, slots: NDArray[np.int32], more: NDArray[np.int32]) -> None:
        """Moves distinct slots on by `more` positions, one for each of their drafts that were kept; -1: no
        token was sampled."""
        self._numbers["position"][slots] += more

    def _bias(self, slots: NDArray[np.int32]) -> dict[str, Array]:
        if not self._biased or self._biased.isdisjoint(slots.tolist()):
            return {}
        rows = [self._settings[slot].logit_bias for slot in slots]
        ids = np.array([token for row in rows for token in row], np.int32)
        values = np.array([value for row in rows for value in row.values()], np.float32)
        return {"bias_start": _starts(rows), "bias_ids": ids, "bias_values": values}

    def _banned(self, slots: NDArray[np.int32], positions: Array) -> dict[str, Array]:
        if not self._banning:
            return {}
        active = positions < self.banned_until[slots]
        if not active.any():
            return {}
        rows = [self._settings[slot].stop_ids if on else () for slot, on in zip(slots, active, strict=True)]
        ids = np.array([token for row in rows for token in row], np.int32)
        return {"banned_start": _starts(rows), "banned_ids": ids}

    def _penalties(self, slots: NDArray[np.int32]) -> dict[str, Array]:
        entries = self.history.entries(slots)
        if entries is None:
            return {}
        settings = [self._settings[slot] for slot in slots]
        return {
            "entry": entries,
            "repetition": np.array([s.repetition_penalty for s in settings], np.float32),
            "presence": np.array([s.presence_penalty for s in settings], np.float32),
            "frequency": np.array([s.frequency_penalty for s in settings], np.float32),
        }


def assemble(tensors: Mapping[str, torch.Tensor], history: TokenHistory, **parts: Any) -> SamplingBatch:
    """The batch with these named tensors and this history; missing parameters are None."""
    t = tensors
    return SamplingBatch(
        temperature=t["temperature"],
        seed=t["seed"],
        position=t["position"],
        top_k=t.get("top_k"),
        top_p=t.get("top_p"),
        min_p=t.get("min_p"),
        bias=LogitBias(t["bias_start"], t["bias_ids"], t["bias_values"]) if "bias_start" in t else None,
        banned=BannedTokens(t["banned_start"], t["banned_ids"]) if "banned_start" in t else None,
        penalties=Penalties(
            t["entry"],
            t["repetition"],
            t["presence"],
            t["frequency"],
            history.prompt_seen,
            history.output_counts,
        )
        if "entry" in t
        else None,
        drafts=DraftedRows(t["offset"], t["draft"]) if "offset" in t else None,
        **parts,
    )


_NUMBERS = {
    "seed": np.int64,
    "position": np.int32,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
}


def _as_int64(seed: int) -> int:
    """The low 64 bits of seed as a signed number."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _starts(rows: Sequence[Mapping[int, float] | Sequence[int]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, rows)], dtype=np.int32)
