"""Recorded sequences of kernels."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from arbora.kernels.common.numba_tools import fetch_add, pointer, shift
from arbora.kernels.common.processor import cores
from arbora.kernels.common.program import Program
from arbora.kernels.common.reused_memory import Blocks, NotRecordableError, ReusedMemory
from arbora.kernels.common.threads import Call, ParallelKernel, recorded_calls
from arbora.kernels.common.waiting import system_call
from arbora.kernels.elementwise import add_rms_norm, rms_norm, silu_and_mul
from arbora.kernels.elementwise import cpu as elementwise_cpu
from arbora.kernels.linear import CodedShape, integer_cpu
from arbora.kernels.linear.integer import IntegerCpuPacker

SIZE, ROWS = 512, 100
SCHED_GETAFFINITY = {"x86_64": 204, "aarch64": 123, "riscv64": 123}


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def steps(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Kernels that each need the whole result of the one before. x and residual: [ROWS, SIZE]"""
    for _ in range(20):
        half = silu_and_mul(x).view(-1, SIZE)  # half as many rows
        add_rms_norm(half, residual[: len(half)], weight, 1e-6)
        x = rms_norm(residual, weight, 1e-6)
    return x


def count_bytes(blocks: Blocks) -> int:
    return sum(size * len(some) for size, some in blocks.by_size.items())


def recorded(blocks: Blocks, *tensors: torch.Tensor) -> tuple[list[Call], torch.Tensor]:
    with recorded_calls() as calls, ReusedMemory(blocks):
        result = steps(*tensors)
    return calls, result


@pytest.mark.parametrize("number", [1, 2, 5, 40])
def test_a_program_gives_the_same_bits_as_its_kernels_and_may_run_again(number: int) -> None:
    x, residual, weight = torch.randn(ROWS, SIZE), torch.randn(ROWS, SIZE), torch.randn(SIZE)
    blocks = Blocks()
    first_residual = residual.clone()
    calls, result = recorded(blocks, x, first_residual, weight)
    assert torch.equal(first_residual, residual), "nothing ran while it was recorded"
    assert len(calls) == 60
    program = Program(calls)
    with threads(number):
        for seed in range(5):
            torch.manual_seed(seed)
            fresh = torch.randn(ROWS, SIZE)
            first_residual.copy_(fresh)
            program.run()
            expected = steps(x, fresh, weight)
            assert torch.equal(first_residual, fresh)
            assert torch.equal(result, expected)


MASK_BYTES = 1024


@ParallelKernel
def _note_mask(arguments: Any) -> None:
    """Arguments: the counter of threads, the number of sched_getaffinity, and where the masks are written."""
    number = fetch_add(arguments, 1)
    system_call(arguments[1], 0, MASK_BYTES, arguments[2] + MASK_BYTES * number)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound on Linux only")
def test_each_thread_is_bound_to_a_core_while_a_program_runs() -> None:
    """With one core or more threads than cores, nothing is bound."""
    everywhere, of_cores = os.sched_getaffinity(0), [list(core.cpus) for core in cores()]
    count = len(of_cores)
    for number, expected in ((count, of_cores), (count + 1, [sorted(everywhere)] * (count + 1))):
        masks = np.zeros((2, number, MASK_BYTES), np.uint8)
        with threads(number):
            with recorded_calls() as calls:
                for of_call in masks:
                    _note_mask.run([SCHED_GETAFFINITY[platform.machine()], of_call.ctypes.data], number)
            Program(calls).run()
            for of_call in masks:
                bits = np.unpackbits(of_call, axis=1, bitorder="little")
                assert sorted(np.flatnonzero(mask).tolist() for mask in bits) == sorted(expected)
            masks[:] = 0
            _note_mask.run([SCHED_GETAFFINITY[platform.machine()], masks.ctypes.data], number)
            bits = np.unpackbits(masks[0], axis=1, bitorder="little")
            assert all(set(np.flatnonzero(mask).tolist()) == everywhere for mask in bits), "not released"


@ParallelKernel
def _add(arguments: Any) -> None:
    """Arguments: the counter, where the sum of the others is written, and numbers up to a 0."""
    total, at = 0, 2
    while arguments[at] != 0:
        total += arguments[at]
        at += 1
    shift(pointer(arguments[1], np.int64(0)), 0)[0] = total


def test_a_kernel_may_get_more_arguments_than_before() -> None:
    total = np.zeros(1, np.int64)
    for numbers in ([1, 2], list(range(1, 40)), [3], list(range(1, 100))):
        _add.run([total.ctypes.data, *numbers, 0], 1)
        assert total[0] == sum(numbers)


def test_a_program_begins_a_product_of_halved_rows_anew_in_each_run() -> None:
    """The product counts which rows and outputs its threads have taken."""
    rows, inputs, outputs = integer_cpu.HALVED_ROWS + 5, 256, 1000
    packer = IntegerCpuPacker(CodedShape(outputs, inputs, 4, 32, 8))
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    packer.write(0, codes, torch.rand(outputs, inputs // 32), None)
    product = packer.product(None, batch_invariant=True)
    x = torch.randn(rows, inputs)
    expected = product(x)
    blocks = Blocks()  # kept, because the program writes to them
    with threads(2):
        with recorded_calls() as calls, ReusedMemory(blocks):
            result = product(x)
        program = Program(calls)
        for _ in range(3):
            result.zero_()
            program.run()
            assert torch.equal(result, expected)


def test_intermediate_tensors_share_memory() -> None:
    tensors = torch.randn(ROWS, SIZE), torch.randn(ROWS, SIZE), torch.randn(SIZE)
    blocks = Blocks()
    _, one = recorded(blocks, *tensors)
    taken = count_bytes(blocks)
    assert taken <= 4 * (1 << (4 * ROWS * SIZE - 1).bit_length()), "60 tensors without reuse"
    _, other = recorded(blocks, *tensors)
    assert count_bytes(blocks) == taken, "programs share their blocks"
    assert one.data_ptr() % 64 == 0 and other.shape == one.shape


def test_living_tensors_have_memory_of_their_own() -> None:
    with ReusedMemory(Blocks()):
        kept = [torch.empty(3, 5, dtype=torch.bfloat16) for _ in range(8)]
        views = [torch.empty(64).view(8, 8)[2:] for _ in range(8)]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*kept, *views)]
    assert len(set(places)) == 16
    assert [tuple(tensor.shape) for tensor in (kept[0], views[0])] == [(3, 5), (6, 8)]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2,
        lambda x: x.half(),
        lambda x: x.t().contiguous(),
        lambda x: x.t().reshape(-1),
        lambda x: x.mul_(2),
        lambda x: x.clone(),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_operations_of_pytorch_cannot_be_recorded(
    compute: Callable[[torch.Tensor], torch.Tensor], inference: bool
) -> None:
    with torch.inference_mode(inference):
        x = torch.ones(2, 3)
        with pytest.raises(NotRecordableError), ReusedMemory(Blocks()):
            compute(x)


def test_views_can_be_recorded() -> None:
    with torch.inference_mode():
        x = torch.ones(2, 4)
        with ReusedMemory(Blocks()):
            views = x.view(4, 2)[1:], x.float(), x.contiguous(), *x.split_with_sizes([1, 3], dim=1)
    assert all(view.untyped_storage().data_ptr() == x.data_ptr() for view in views)


def test_arguments_of_recorded_calls_can_change() -> None:
    x, weight = torch.randn(4, SIZE), torch.ones(SIZE)
    other = torch.randn(4, SIZE)
    with recorded_calls() as calls:
        result, last = rms_norm(x, weight, 1e-6), silu_and_mul(x)
    program = Program(calls)
    assert program.calls_of(elementwise_cpu.NORMS[torch.float32, torch.float32]) == [0]
    program.run()
    assert torch.equal(result, rms_norm(x, weight, 1e-6))
    program.change(program.places_of([0], [1, 3]), [2, other.data_ptr()])
    program.run()
    assert torch.equal(result[:2], rms_norm(other[:2], weight, 1e-6)), "two rows of other values"
    assert torch.equal(result[2:], rms_norm(x[2:], weight, 1e-6)), "as they were"
    assert torch.equal(last, silu_and_mul(x))


def test_a_kernel_runs_again_after_a_recording_that_failed() -> None:
    x, weight = torch.randn(3, SIZE), torch.ones(SIZE)
    expected = rms_norm(x, weight, 1e-6)
    with pytest.raises(NotRecordableError), recorded_calls() as calls, ReusedMemory(Blocks()):
        rms_norm(rms_norm(x, weight, 1e-6) * 2, weight, 1e-6)
    assert len(calls) == 1
    assert torch.equal(rms_norm(x, weight, 1e-6), expected)


def test_recording_does_not_import_pytorchs_compiler() -> None:
    script = (
        "import sys, torch\n"
        "from arbora.kernels.common.reused_memory import Blocks, ReusedMemory\n"
        "with ReusedMemory(Blocks()):\n"
        "    torch.empty(3)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
