"""Experts on a CPU against the reference: any routing, every format of weights, recorded and not."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.common.program import Program
from arbora.kernels.common.reused_memory import Blocks, NotRecordableError, ReusedMemory
from arbora.kernels.common.threads import recorded_calls
from arbora.kernels.elementwise import silu_and_mul
from arbora.kernels.experts import Experts, Router, Routing, clamp_and_gate
from arbora.kernels.experts.sorting_cpu import MAX_ROWS
from arbora.kernels.linear import CodedShape, Linear, find_packer
from arbora.kernels.linear.half_cpu import HalfCpuProduct
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_machine import SimulatedMachine

HIDDEN, INNER, EXPERTS = 96, 64, 6
Pack = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def pack_codes(bits: int | None, zero: int | None) -> Pack:
    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        outputs, inputs = weight.shape
        shape = CodedShape(outputs, inputs, bits, 32, zero)
        make = find_packer(shape, weight.device)
        assert make is not None
        packer = make(shape)
        scales = weight.view(outputs, -1, 32).abs().amax(2) / (200 if bits is None else (1 << bits) / 2 - 1)
        units = weight / scales.repeat_interleave(32, 1)
        if bits is None:
            packer.write(0, units.to(torch.float8_e4m3fn), scales)
        else:
            codes = (units.round() + (1 << (bits - 1))).to(torch.uint8)
            packer.write(0, codes, scales, None if zero is not None else -scales * (1 << (bits - 1)))
        return Linear.quantized(packer.product(bias))

    return pack


def pack_float16(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return Linear(HalfCpuProduct(weight.half(), bias), *weight.shape)


def pack_bfloat16(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return Linear(HalfCpuProduct(weight.bfloat16(), bias), *weight.shape)


FORMATS: dict[str, tuple[Pack, torch.dtype]] = {
    "int4": (pack_codes(4, 8), torch.bfloat16),
    "int4 with offsets": (pack_codes(4, None), torch.float32),
    "int8": (pack_codes(8, 128), torch.float32),
    "fp8": (pack_codes(None, 0), torch.float32),
    "fp8 in bfloat16": (pack_codes(None, 0), torch.bfloat16),
    "float16": (pack_float16, torch.float16),
    "bfloat16": (pack_bfloat16, torch.bfloat16),
    "float32": (Linear.pack, torch.float32),
}


def make_products(pack: Pack, outputs: int, inputs: int, biased: bool) -> list[Linear]:
    random = torch.Generator().manual_seed(outputs)
    return [
        pack(
            torch.randn(outputs, inputs, generator=random) / inputs**0.5,
            torch.randn(outputs, generator=random) if biased else None,
        )
        for _ in range(EXPERTS)
    ]


@pytest.fixture(scope="module", params=FORMATS)
def case(request: pytest.FixtureRequest) -> tuple[list[Linear], list[Linear], torch.dtype]:
    pack, dtype = FORMATS[request.param]
    return (
        make_products(pack, 2 * INNER, HIDDEN, biased=True),
        make_products(pack, HIDDEN, INNER, biased=False),
        dtype,
    )


def make_routing(tokens: int, k: int, seed: int, hot: bool) -> Routing:
    """Some numbers stand for no expert. hot: nearly all tokens have expert 1"""
    random = torch.Generator().manual_seed(seed)
    experts = torch.stack([torch.randperm(EXPERTS + 1, generator=random)[:k] for _ in range(tokens)])
    if hot:
        experts[torch.rand(tokens, generator=random) < 0.9, 0] = 1
    return Routing(experts, torch.rand(tokens, k, generator=random))


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}[got.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("tokens", "k", "hot"), [(1, 4, False), (5, 2, False), (70, 3, False), (300, 1, True)]
)
def test_experts_agree_with_the_reference(
    case: tuple[list[Linear], list[Linear], torch.dtype], tokens: int, k: int, hot: bool
) -> None:
    first, second, dtype = case
    assert tokens != 300 or 0.9 * tokens > MAX_ROWS
    routing = make_routing(tokens, k, tokens, hot)
    x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = Experts(first, second, silu_and_mul)(x, routing)
    assert got.dtype == dtype
    assert_close(got, reference.run_experts(x, first, second, silu_and_mul, *routing))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two nodes need two cores")
def test_experts_on_two_nodes_give_the_bits_of_one_node(
    case: tuple[list[Linear], list[Linear], torch.dtype], machine: SimulatedMachine
) -> None:
    first, second, dtype = case
    experts, threads = Experts(first, second, silu_and_mul), torch.get_num_threads()
    torch.set_num_threads(2)
    for tokens in (1, 5, 70):
        x, routing = torch.randn(tokens, HIDDEN).to(dtype), make_routing(tokens, 3, tokens, False)
        machine.has_real_cores(nodes=1)
        expected = experts(x, routing)
        machine.has_real_cores(nodes=2)
        assert torch.equal(experts(x, routing), expected)
    torch.set_num_threads(threads)


def test_a_recorded_program_serves_any_routing(
    case: tuple[list[Linear], list[Linear], torch.dtype], request: pytest.FixtureRequest
) -> None:
    first, second, dtype = case
    experts = Experts(first, second, silu_and_mul)
    x, numbers, shares = torch.empty(4, HIDDEN, dtype=dtype), torch.empty(4, 2).int(), torch.empty(4, 2)
    blocks = Blocks()
    try:
        with recorded_calls() as calls, ReusedMemory(blocks):
            out = experts(x, Routing(numbers, shares))
    except NotRecordableError:
        assert request.node.callspec.id == "float32"
        return
    program = Program(calls)
    for seed in range(4):
        routing = make_routing(4, 2, seed, False)
        numbers.numpy()[:], shares.numpy()[:] = routing.experts, routing.shares
        x.copy_(torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(seed)))
        program.run()
        assert_close(out, reference.run_experts(x, first, second, silu_and_mul, *routing))


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.integers(1, 40),
    experts=st.integers(1, 20),
    data=st.data(),
    renormalizes=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_a_router_chooses_the_largest_logits(
    tokens: int, experts: int, data: st.DataObject, renormalizes: bool, dtype: torch.dtype
) -> None:
    k = data.draw(st.integers(1, experts))
    random = torch.Generator().manual_seed(tokens)
    weight = torch.randn(experts, 24, generator=random).to(dtype)
    bias = torch.randn(experts, generator=random).to(dtype) if data.draw(st.booleans()) else None
    x = torch.randint(-2, 3, (tokens, 24), generator=random).to(dtype)
    numbers, shares = Router(weight, bias, k, renormalizes)(x)
    logits = (x.double() @ weight.double().T + (0 if bias is None else bias.double())).to(dtype)
    wanted, factors = reference.choose_experts(logits, k, renormalizes)
    assert all(len(set(row)) == k for row in numbers.tolist())
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 3e-2}[dtype]
    chosen = logits.gather(1, numbers.long()).float()
    assert_near(chosen, logits.gather(1, wanted).float(), tolerance)
    assert_near(shares, factors, tolerance)


def assert_near(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


def test_equal_logits_choose_the_lowest_numbers() -> None:
    numbers, shares = Router(torch.zeros(9, 4), None, 3, renormalizes=False)(torch.ones(2, 4))
    assert numbers.tolist() == [[0, 1, 2]] * 2
    assert_near(shares, torch.full((2, 3), 1 / 9), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_clamped_gate_agrees_with_the_reference(dtype: torch.dtype) -> None:
    gate_up = (8 * torch.randn(5, 2 * 37, generator=torch.Generator().manual_seed(0))).to(dtype)
    gate_up[3, 4], gate_up[4, 5] = torch.nan, -1e4
    got, expected = clamp_and_gate(gate_up, 1.702, 7.0), reference.clamp_and_gate(gate_up, 1.702, 7.0)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_a_logit_that_is_no_number_makes_the_shares_no_numbers() -> None:
    x = torch.ones(1, 4)
    x[0, 0] = torch.nan
    numbers, shares = Router(torch.ones(5, 4), None, 2, renormalizes=True)(x)
    assert numbers.tolist() == [[0, 1]] and bool(shares.isnan().all())


def test_a_rows_bits_do_not_depend_on_others_if_they_must_not() -> None:
    for pack, dtype in (FORMATS[name] for name in ("int4", "fp8", "bfloat16", "float16")):
        first = make_products(pack, 2 * INNER, HIDDEN, biased=False)
        second = make_products(pack, HIDDEN, INNER, biased=False)
        experts = Experts(first, second, silu_and_mul)
        routing, x = make_routing(50, 3, 0, False), torch.randn(50, HIDDEN).to(dtype)
        together = experts(x, routing)
        for row in range(0, 50, 7):
            one = slice(row, row + 1)
            assert torch.equal(
                experts(x[one], Routing(routing.experts[one], routing.shares[one]))[0], together[row]
            )
