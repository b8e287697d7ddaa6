"""The reference, the CPU and Triton (in its interpreter) sample the same tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from arbora.kernels.sampling import Sampled, SamplingBatch
from arbora.kernels.sampling import cuda as sampling_triton
from hypothesis import given, settings
from interpreted_triton import DEVICE
from sampling_cases import SAMPLERS, batch, cases, mask
from triton.runtime.interpreter import InterpreterBuilder

Case = tuple[torch.Tensor, SamplingBatch, int | None]


def assert_same(got: Sampled, expected: Sampled) -> None:
    assert got.bad.tolist() == expected.bad.tolist()
    assert got.tokens.tolist() == expected.tokens.tolist()
    if expected.logprobs is None:
        assert got.logprobs is None
        return
    fine = got.bad == 0
    assert got.logprobs is not None and got.top_logprobs is not None and expected.top_logprobs is not None
    torch.testing.assert_close(got.logprobs[fine], expected.logprobs[fine], atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(got.top_logprobs, expected.top_logprobs, atol=3e-6, rtol=1e-6)


@settings(max_examples=300, deadline=None)
@given(cases(vocabs=[1, 2, 33, 64, 200, 1000, 5000]))
def test_the_cpu_samples_as_the_reference(case: Case) -> None:
    logits, made, count = case
    got, expected = SAMPLERS["cpu"](logits, made, count), SAMPLERS["reference"](logits, made, count)
    assert_same(got, expected)
    if got.top_ids is not None and expected.top_ids is not None:
        assert torch.equal(got.top_ids[got.bad == 0], expected.top_ids[got.bad == 0])


@settings(max_examples=20, deadline=None)
@given(cases(vocabs=[2, 33, 128, 300, 700], max_rows=2))
def test_triton_samples_as_the_cpu(case: Case) -> None:
    logits, made, count = case
    got, expected = SAMPLERS["triton"](logits, made, count), SAMPLERS["cpu"](logits, made, count)
    assert_same(got, expected)
    if got.top_ids is not None and expected.top_logprobs is not None and count:
        listed = torch.log_softmax(logits, dim=-1).gather(1, got.top_ids.long())
        finite = listed.isfinite()
        torch.testing.assert_close(listed[finite], expected.top_logprobs[finite], atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_impossible_tokens_are_listed_once_each(name: str) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf], [-torch.inf, -torch.inf, 0.0]])
    sampled = SAMPLERS[name](logits, batch(2, temperature=0), 3)
    assert sampled.top_ids is not None
    assert sampled.top_ids.tolist() == [[1, 0, 2], [2, 0, 1]]


def test_triton_filters_as_the_cpu() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 600, generator=generator) * 3
    logits[3] = logits[3].round()
    logits[4] = 1.0
    made = batch(
        6,
        seed=[11, 12, 13, 14, 15, 16],
        temperature=[1.0, 2.0, 0.7, 1.5, 1.0, 0.0],
        top_k=[20, 0, 50, 3, 7, 5],
        top_p=[1.0, 0.9, 0.5, 0.99, 0.3, 0.1],
        min_p=[0.0, 0.0, 0.01, 0.0, 0.0, 0.5],
    )
    for position in range(3):
        at = batch(6, position=position)
        moved = SamplingBatch(
            made.temperature, made.seed, at.position, False, made.top_k, made.top_p, made.min_p
        )
        got, expected = SAMPLERS["triton"](logits, moved, None), SAMPLERS["cpu"](logits, moved, None)
        assert got.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_triton_cuts_half_precision_logits_among_ties_of_several_chunks(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(1)
    )
    logits = (torch.randn(6, 520, generator=torch.Generator().manual_seed(8)) * 2).round().to(dtype)
    made = batch(
        6,
        seed=[1, 2, 3, 4, 5, 6],
        temperature=[1.0, 3.0, 0.05, 2.0, 1.0, 3.0],
        top_k=[0, 0, 30, 130, 0, 200],
        top_p=[0.9, 0.999, 1.0, 0.6, 1.0, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.05, 0.2, 0.0],
        mask=mask(520, None, range(7, 520), None, range(0, 520, 2), None, range(260)),
    )
    got, expected = SAMPLERS["triton"](logits, made, None), SAMPLERS["reference"](logits.float(), made, None)
    assert got.tokens.tolist() == expected.tokens.tolist()


def flat_rows(vocab: int) -> torch.Tensor:
    """Rows whose tokens are nearly all close to the largest: some spreads, ties, and a peak over the rest."""
    noise = torch.randn(6, vocab, generator=torch.Generator().manual_seed(3))
    rows = noise * torch.tensor([1.0, 0.3, 0.01, 1.0, 0.5, 0.0])[:, None]
    rows[3, 7] = np.log(vocab)
    rows[4] = rows[4].bfloat16()
    return rows


FLAT_P = [0.9, 0.5, 0.99, 0.95, 0.3, 0.9]


def test_triton_cuts_flat_rows_as_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNK", 4096), ("TILE", 4096), ("SAMPLES", 512)):
        monkeypatch.setattr(sampling_triton, name, value)
    logits = flat_rows(4500)
    made = batch(6, seed=1, temperature=[1.0, 0.7, 1.0, 1.5, 1.0, 1.0], top_p=FLAT_P, min_p=0.01)
    got, expected = SAMPLERS["triton"](logits, made, None), SAMPLERS["cpu"](logits, made, None)
    assert got.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.skipif(DEVICE.type == "cuda", reason="counts calls of Triton's interpreter")
def test_few_tokens_of_flat_rows_are_added_to_buckets_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    add = InterpreterBuilder.create_atomic_rmw

    def counted(builder: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        if mask.data.size > 1:
            added.append(int(mask.data.sum()))
        return add(builder, op, ptr, val, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", counted)
    for name in ("CHUNK", "TILE"):
        monkeypatch.setattr(sampling_triton, name, 4096)
    logits = flat_rows(4500)[:3]
    SAMPLERS["triton"](logits, batch(3, top_p=FLAT_P[:3]), None)
    assert 0 < sum(added) < logits.numel() / 6
