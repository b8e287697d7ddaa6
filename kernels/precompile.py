"""Fill numba's cache, so that no start of a server compiles: `python -m arbora.kernels.precompile`."""

from collections.abc import Callable

import numpy as np
import torch

from .adapters import cpu as adapters_cpu
from .attention import AttentionBatch, float_tiles, items, paged_attention, tiles
from .automaton import cpu as automaton_cpu
from .automaton.pool import smallest_pool
from .automaton.rows import SlotRegisters
from .common import amx, bfloat16_dots, draft_choice, program, rows, step_tokens, token_index
from .common.drafts import DraftRows, Drafts
from .elementwise import cpu as elementwise_cpu
from .experts import gate_cpu, grouped_cpu, router_cpu, sorting_cpu
from .linear import FACTOR_INPUTS, CodedShape, find_packer, fp8_cpu, half_cpu
from .pages import cpu as pages_cpu
from .ranks import cpu as ranks_cpu
from .rotary import cpu as rotary_cpu
from .sampling import Sampled, row_cpu, slots_cpu
from .sampling.state import SamplingState

DTYPES = (torch.bfloat16, torch.float32)


def compile_kernels() -> None:
    """Compile the CPU kernels; later processes load what is cached on disk."""
    groups: dict[str, Callable[[], None]] = {
        "attention": _attention,
        "matrix products": _products,
        "experts": _experts,
        "norms, activations, rotations, adapters and ranks": _small_kernels,
        "automata": _step_an_automaton,
        "sampling": _sampling,
    }
    for number, (name, compile_group) in enumerate(groups.items(), start=1):
        compile_group()
        print(f"  CPU kernels: {name} compiled, {number} of {len(groups)}", flush=True)


def _attention() -> None:
    pages_cpu.copy_pages_kernel.load()
    for dtype in DTYPES:
        for stored in (dtype, torch.int8):
            items.KERNELS[dtype, stored].load()
            if dtype != torch.bfloat16 or not bfloat16_dots.available():
                float_tiles.KERNELS[dtype, stored].load()
        items.MERGE_KERNELS[dtype].load()
    if bfloat16_dots.available():
        for stored in (torch.bfloat16, torch.int8):
            tiles.KERNELS[stored].load()
    # A step with a group, for the functions that plan it.
    tables = [np.zeros(2, np.int32)] * 2
    batch = AttentionBatch.build([1, 1], [2, 2], tables, 1, torch.device("cpu"), [(0, 2, 1)])
    paged_attention(torch.zeros(2, 1, 32), torch.zeros(2, 1, 1, 1, 32), batch, 1.0)


def _products() -> None:
    rows.copy_part.load()
    for dtype in DTYPES:
        rows.COPIES_OF_COLUMNS[dtype.itemsize].load()
        fp8_cpu.choose_kernel(dtype).load()
    fp8_cpu.expand_rows.load()
    if half_cpu.serves(torch.bfloat16):
        half_cpu.KERNELS[torch.bfloat16].load()
        half_cpu.copy_rows.load()
        if amx.available():
            half_cpu.multiply_by_amx.load()
    rows.WIDENINGS[torch.bfloat16].load()
    for bits in (4, 8):
        for zero in (0, None):
            _integer_product(CodedShape(1, 16, bits, 16, zero))
    for bits, zero in ((4, None), (6, 0)):  # Q4_K and Q6_K, which most GGUF files have
        _integer_product(CodedShape(1, FACTOR_INPUTS, bits, 16, zero, has_factors=True))


def _experts() -> None:
    sorting_cpu.sort_kernel.load()
    for dtype in DTYPES:
        sorting_cpu.CHOICES[dtype].load()
        sorting_cpu.SUMS[dtype].load()
        gate_cpu.GATES[dtype].load()
        router_cpu.PRODUCTS[dtype].load()
    integers = [kernel for (form, _), kernel in grouped_cpu.INTEGERS.items() if not form.has_factors]
    for kernel in integers:
        kernel.load()
    if half_cpu.serves(torch.bfloat16):
        grouped_cpu.HALVES[torch.bfloat16].load()


def _integer_product(shape: CodedShape) -> None:
    make = find_packer(shape, torch.device("cpu"))
    if make is not None:
        packer = make(shape)
        ones, codes = torch.ones(1, shape.groups), torch.zeros(1, shape.inputs, dtype=torch.uint8)
        factors = torch.ones(2 if shape.zero is None else 1, 1, 1) if shape.has_factors else None
        packer.write(0, codes, ones, ones if shape.zero is None else None, factors)
        product = packer.product(None)
        product(product.rows(torch.zeros(1, dtype=torch.int64)))


def _small_kernels() -> None:
    for table in (elementwise_cpu.ACTIVATIONS, elementwise_cpu.NORMS, elementwise_cpu.SCALES):
        for kernel in table.values():
            kernel.load()
    program.run_calls.load()
    step_tokens.record_feed.load()
    rows.copy_rows.load()
    one = np.zeros(1, np.int64)
    none = np.zeros(1, np.int32)
    step_tokens.StepTokens.of(one, one, one, none, np.zeros((1, 1), np.int32), one + 1, 1)
    ranks_cpu.join_parts.load()
    for dtype in DTYPES:
        ranks_cpu.SUMS[dtype].load()
        adapters_cpu.DOWN_KERNELS[dtype].load()
        adapters_cpu.UP_KERNELS[dtype].load()
        for stored in (dtype, torch.int8):
            rotary_cpu.KERNELS[dtype, stored].load()


def _sampling() -> None:
    row_cpu.sample_rows.load()
    slots_cpu.sample_slots.load()
    one = np.zeros(1, np.int32)
    drafts = Drafts(one, one + 1, *[one] * 3)
    DraftRows.of(*drafts.cut(one)[1:3])
    states = SamplingState(1, 1, "cpu"), SlotRegisters(1, 1, "cpu", drafts=1)
    zero = torch.zeros(1, dtype=torch.int32)
    sampled = Sampled(zero, zero, None, None, None)
    texts = token_index.TokenIndex(1)
    texts.start(0, one, 1)
    zeros = np.zeros(1, np.int64)
    token_index.find_drafts(texts.table, texts.table, one, one - 1, zeros, *[one] * 5)
    outcomes, own = np.ones((1, 1, 2)), np.ones((1, 2))
    draft_choice.choose_drafts(Drafts(*[one] * 5), outcomes, own, np.ones(3), 1, 1, False)
    draft_choice.count_outcomes(Drafts(*[one] * 5), one, one, outcomes, own)
    draft_choice.learn_cost(1, 1.0, 1, *np.ones((2, 2)), np.ones(2, np.int64), *np.ones((3, 2)))
    states[0].record_drafted(one, DraftRows.without_drafts(1), sampled, states[1])


def _step_an_automaton() -> None:
    one = np.zeros(1, np.int32)
    pool = smallest_pool("cpu", 1)
    rows = pool.rows(one)
    pool.mask(rows)
    automaton_cpu.advance(rows, torch.from_numpy(one))
    drafting = smallest_pool("cpu", 1, drafts=1)
    drafting.rows(one, DraftRows.without_drafts(1))
    drafting.count_live(Drafts(*[one] * 5))


if __name__ == "__main__":
    compile_kernels()
