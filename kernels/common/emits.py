"""Functions whose code an LLVM builder emits, for compiled functions to call."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Intrinsic: TypeAlias = Any
"""A function that compiled functions call, and whose code an LLVM builder emits."""

VOID, INT, FLOAT, BOOL = types.void, types.int64, types.float32, types.boolean
TO_FLOATS, TO_WORDS = types.CPointer(types.float32), types.CPointer(types.uint32)
TO_BYTES, TO_CODES = types.CPointer(types.uint8), types.CPointer(types.int8)
"""numba's types of results and parameters; TO_…: pointers"""
ANY = None
"""a parameter that keeps the type of its argument"""


def emits(result: Any, *parameters: Any) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Makes an `Intrinsic` of a function that emits its code.

    That function gets the builder and the values of the arguments, and returns the result. If it has a
    parameter `kinds`, it gets numba's types of the arguments too.
    result, parameters: numba's types, or ANY
    """

    def decorate(emit: Callable[..., Any]) -> Intrinsic:
        takes_kinds = "kinds" in signature(emit).parameters

        def define(typing: object, *given: types.Type) -> tuple[object, Callable[..., Any]]:
            kinds = [one if wanted is ANY else wanted for one, wanted in zip(given, parameters, strict=True)]

            def generate(context: Any, builder: ir.IRBuilder, signature: object, values: Any) -> Any:
                value = emit(builder, *values, kinds=kinds) if takes_kinds else emit(builder, *values)
                return context.get_dummy_value() if result is VOID else value

            return result(*kinds), generate

        # numba reads the number of parameters from the signature.
        names = [Parameter(f"_{at}", Parameter.POSITIONAL_ONLY) for at in range(len(parameters) + 1)]
        define.__signature__ = Signature(names)  # type: ignore[attr-defined]
        define.__name__ = define.__qualname__ = emit.__name__
        define.__doc__ = emit.__doc__
        return intrinsic(define)

    return decorate


def branch(
    builder: ir.IRBuilder, number: ir.Value, cases: Sequence[int], emit: Callable[[int], None]
) -> None:
    """Emits the code of each case. The one runs that equals the number, or the last one if none does."""
    end = builder.append_basic_block()
    blocks = [builder.append_basic_block() for _ in cases]
    switch = builder.switch(number, blocks[-1])
    for case, block in zip(cases, blocks, strict=True):
        if block is not blocks[-1]:
            switch.add_case(ir.Constant(number.type, case), block)
        builder.position_at_end(block)
        emit(case)
        builder.branch(end)
    builder.position_at_end(end)
