# mypy: disable-error-code="untyped-decorator,attr-defined"
"""Arrays without reference counts: counting references takes longer than what small functions do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def _unowned(typing: Any, arrays: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, arrays, arguments[0])

    return arrays(arrays), generate


unowned: Callable[[Any], Any] = _unowned
"""The arrays without reference counts. The caller must keep the originals while it uses the result."""


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        for place, part in enumerate(kind.types):
            element = _without_owner(context, builder, part, builder.extract_value(value, place))
            value = builder.insert_value(value, element, place)
        return value
    if not isinstance(kind, types.Array):
        return value
    view = context.make_array(kind)(context, builder, value=value)
    view.meminfo = ir.Constant(view.meminfo.type, None)
    view.parent = ir.Constant(view.parent.type, None)
    return view._getvalue()
