"""Batches for the sampling tests, and the three samplers that must agree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import interpreted_triton  # noqa: F401
import numpy as np
import torch
from arbora.kernels.sampling import BannedTokens, LogitBias, Penalties, Sampled, SamplingBatch, TokenMask
from arbora.kernels.sampling import cpu as sampling_cpu
from arbora.kernels.sampling import cuda as sampling_triton
from arbora.kernels.sampling import reference as sampling_reference
from hypothesis import strategies as st
from triton_device import moved

# Many chunks, stretches and tiles in small vocabularies.
sampling_triton.CHUNK, sampling_triton.TILE = 128, 256
sampling_triton.STRETCH, sampling_triton.RACE_TILE = 64, 32

Sampler = Callable[[torch.Tensor, SamplingBatch, int | None], Sampled]
SAMPLERS: Mapping[str, Sampler] = {
    "reference": sampling_reference.sample,
    "cpu": sampling_cpu.sample,
    "triton": lambda *case: moved(sampling_triton.sample(*moved(case)), torch.device("cpu")),
}
Numbers = float | Sequence[float]


def batch(
    rows: int = 1,
    *,
    temperature: Numbers = 1.0,
    seed: int | Sequence[int] = 0,
    position: int | Sequence[int] = 0,
    top_k: Numbers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
    **parts: Any,
) -> SamplingBatch:
    """A batch from single values (for all rows) or one value for each row."""
    return SamplingBatch(
        temperature=_column(rows, temperature, torch.float32),
        seed=_column(rows, seed, torch.int64),
        position=_column(rows, position, torch.int32),
        top_k=None if top_k is None else _column(rows, top_k, torch.int32),
        top_p=None if top_p is None else _column(rows, top_p, torch.float32),
        min_p=None if min_p is None else _column(rows, min_p, torch.float32),
        **parts,
    )


def _column(rows: int, values: Numbers, dtype: torch.dtype) -> torch.Tensor:
    listed = values if isinstance(values, Sequence) else [values] * rows
    assert len(listed) == rows
    return torch.tensor(listed, dtype=dtype)


def mask(vocab: int, *allowed: Sequence[int] | None) -> TokenMask:
    """A mask for each row that lists its allowed tokens; None for a row without one."""
    listed = [row for row in allowed if row is not None]
    bits = np.zeros((max(1, len(listed)), -(-vocab // 32) * 32), np.uint8)
    for number, row in enumerate(listed):
        bits[number, list(row)] = 1
    numbers = iter(range(len(listed)))
    index = [-1 if row is None else next(numbers) for row in allowed]
    return TokenMask(torch.tensor(index, dtype=torch.int32), packed(bits))


def packed(bits: "np.ndarray[Any, Any]") -> torch.Tensor:
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def banned(*rows: Sequence[int]) -> BannedTokens:
    return BannedTokens(_starts(rows), _ids(rows))


def bias(*rows: Mapping[int, float]) -> LogitBias:
    values = [value for row in rows for value in row.values()]
    return LogitBias(_starts(rows), _ids(rows), torch.tensor(values, dtype=torch.float32))


def _starts(rows: Sequence[Sequence[int] | Mapping[int, float]]) -> torch.Tensor:
    return torch.tensor(np.cumsum([0, *map(len, rows)]), dtype=torch.int32)


def _ids(rows: Sequence[Sequence[int] | Mapping[int, float]]) -> torch.Tensor:
    return torch.tensor([token for row in rows for token in row], dtype=torch.int32)


def penalties(
    vocab: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> Penalties:
    """Penalties of a single row."""
    seen = np.zeros((1, -(-vocab // 32) * 32), np.uint8)
    seen[0, list(prompt)] = 1
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=vocab).int().unsqueeze(0)
    one = torch.ones(1)
    return Penalties(
        torch.zeros(1, dtype=torch.int32),
        repetition * one,
        presence * one,
        frequency * one,
        packed(seen),
        counts,
    )


@st.composite
def cases(
    draw: st.DrawFn, vocabs: Sequence[int], max_rows: int = 4
) -> tuple[torch.Tensor, SamplingBatch, int | None]:
    """Logits (often with ties), a batch using any of the parameters, and how many top log-probabilities."""
    vocab = draw(st.sampled_from(vocabs))
    rows = draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = torch.from_numpy(rng.standard_normal((rows, vocab)).astype(np.float32))
    logits *= draw(st.sampled_from([0.0, 0.1, 1.0, 8.0]))
    if draw(st.booleans()):
        logits = logits.round()
    if draw(st.booleans()):
        logits[torch.from_numpy(rng.random((rows, vocab)) < 0.2)] = -torch.inf

    def column(*values: float) -> list[float]:
        return [float(value) for value in rng.choice(values, rows)]

    def lists() -> list[list[int]]:
        most = min(vocab, 4)
        return [rng.choice(vocab, rng.integers(0, most), replace=False).tolist() for _ in range(rows)]

    optional: dict[str, Callable[[], Any]] = {
        "top_k": lambda: [int(k) for k in column(0, 1, 2, 7, 40, 1000)],
        "top_p": lambda: column(0.01, 0.3, 0.5, 0.9, 0.999, 1),
        "min_p": lambda: column(0, 0.01, 0.3, 1),
        "bias": lambda: bias(*({token: float(rng.normal() * 5) for token in row} for row in lists())),
        "banned": lambda: banned(*lists()),
        "mask": lambda: _random_mask(rng, rows, vocab),
        "host_mask": lambda: _random_mask(rng, rows, vocab),
        "penalties": lambda: _random_penalties(rng, rows, vocab),
    }
    used = draw(st.sets(st.sampled_from(sorted(optional))))
    made = batch(
        rows,
        temperature=column(0, 0.3, 1, 3),
        seed=[int(seed) for seed in rng.integers(-(2**63), 2**63, rows)],
        position=[int(position) for position in rng.integers(0, 2**31, rows)],
        **{name: optional[name]() for name in sorted(used)},
    )
    return logits, made, draw(st.sampled_from([None, 0, 1, min(5, vocab)]))


def _random_mask(rng: np.random.Generator, rows: int, vocab: int) -> TokenMask:
    bits = (rng.random((3, -(-vocab // 32) * 32)) < [[0.02], [0.5], [1]]).astype(np.uint8)
    return TokenMask(torch.from_numpy(rng.integers(-1, 3, rows).astype(np.int32)), packed(bits))


def _random_penalties(rng: np.random.Generator, rows: int, vocab: int) -> Penalties:
    numbers = torch.from_numpy(rng.random((3, rows)).astype(np.float32))
    seen = (rng.random((rows, -(-vocab // 32) * 32)) < 0.3).astype(np.uint8)
    counts = rng.poisson(0.3, (rows, vocab)).astype(np.int32)
    entry = rng.permutation(rows + 1)[:rows].astype(np.int32) - 1
    return Penalties(
        torch.from_numpy(entry),
        numbers[0] + 0.5,
        numbers[1],
        numbers[2],
        packed(seen),
        torch.from_numpy(counts),
    )
