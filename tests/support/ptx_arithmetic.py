"""Runs a block of PTX on numpy arrays: the few arithmetic instructions that `kernels` writes itself."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def run(code: str, inputs: Sequence[Words], outputs: int) -> list[Words]:
    """The first `outputs` operands ($0 …) after the code, whose next operands are the inputs."""
    registers = {f"${outputs + place}": value for place, value in enumerate(inputs)}

    def value(operand: str) -> Words:
        return np.uint32(int(operand, 0)) if operand[0].isdigit() else registers[operand]  # type: ignore[return-value]

    for line in filter(None, (line.strip() for line in code.strip("{}\n ").split(";"))):
        operation, _, rest = line.partition(" ")
        if operation == ".reg":
            continue
        target, *operands = re.split(r",\s*", rest.strip())
        registers[target] = INSTRUCTIONS[operation](*map(value, operands))
    shape = np.broadcast_shapes(*(np.shape(each) for each in inputs))
    return [np.broadcast_to(registers[f"${place}"], shape) for place in range(outputs)]


def halves(words: Words) -> NDArray[np.uint16]:
    """[n] → [n, 2], the low halves first"""
    return np.stack([words & 0xFFFF, words >> 16], axis=-1).astype(np.uint16)


def _prmt(a: Words, b: Words, selector: Words) -> Words:
    """Each digit of the selector picks a byte; with its highest bit, that byte's sign in all bits."""
    pool = [(source >> np.uint32(8 * place)) & np.uint32(0xFF) for source in (a, b) for place in range(4)]
    result = np.zeros_like(a | b)
    for place in range(4):
        digit = int(selector) >> (4 * place) & 15
        byte = pool[digit & 7]
        picked = (byte >> np.uint32(7)) * np.uint32(0xFF) if digit & 8 else byte
        result |= picked << np.uint32(8 * place)
    return result


def _lop3(a: Words, b: Words, c: Words, table: Words) -> Words:
    result = np.zeros_like(a | b | c)
    for term in range(8):
        if int(table) >> term & 1:
            result |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
    return result


def _fma(dtype: torch.dtype) -> Callable[[Words, Words, Words], Words]:
    def numbers(words: Words) -> torch.Tensor:
        return torch.from_numpy(halves(np.atleast_1d(words))).view(dtype).double()

    def fma(a: Words, b: Words, c: Words) -> Words:
        exact = numbers(a) * numbers(b) + numbers(c)
        rounded = exact.to(dtype)
        assert torch.equal(rounded.double(), exact), "an inexact sum"
        bits = rounded.view(torch.uint16).numpy().astype(np.uint32)
        return bits[..., 0] | bits[..., 1] << np.uint32(16)

    return fma


INSTRUCTIONS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "prmt.b32": _prmt,
    "lop3.b32": _lop3,
    "shr.u32": lambda a, count: a >> count,
    "shl.b32": lambda a, count: a << count,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "fma.rn.bf16x2": _fma(torch.bfloat16),
    "fma.rn.f16x2": _fma(torch.float16),
}
