"""The code that a worker compiles before it takes jobs: a grammar has two seconds, numba may need more."""

from __future__ import annotations

import json
import os
import sys

import pytest
from arbora.grammars.masks.token_trie import make_tries
from arbora.grammars.service.builder import AutomatonBuilder
from arbora.grammars.service.builder_process import COMPILING_NICENESS, BeforeCompiling, warm_up
from arbora.grammars.tags.special_tokens import SpecialTokens
from arbora.runtime.grammar_spec import GrammarSpec, PropertyOrder
from numba.core.dispatcher import Dispatcher
from numba.core.event import Event, EventStatus

SCHEMAS: list[object] = [
    {"type": "array", "items": {"$ref": "#"}},
    {"properties": {"a": {"pattern": "^a+$"}, "b": {"maxLength": 500}}, "required": ["b"]},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "b": {"minimum": 3}},
        "additionalProperties": False,
    },
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"enum": ["a", 1, None], "type": "string"},
]


def compiled_functions() -> dict[str, int]:
    """The number of argument types for which each of our functions was compiled."""
    modules = [module for name, module in sys.modules.items() if name.startswith("arbora.grammars")]
    functions = [
        value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)
    ]
    return {f"{f.py_func.__module__}.{f.py_func.__name__}": len(f.signatures) for f in functions}


@pytest.fixture(scope="module")
def builder() -> AutomatonBuilder:
    made = AutomatonBuilder(
        make_tries([(bytes([byte]), byte) for byte in range(256)], (256,), 257), SpecialTokens({})
    )
    made.warm_up()
    return made


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_grammar_waits_for_functions_to_be_compiled(
    builder: AutomatonBuilder, schema: object, order: PropertyOrder
) -> None:
    before = compiled_functions()
    builder.build("schema", GrammarSpec("json_schema", json.dumps(schema), property_order=order))
    assert compiled_functions() == before


STARTED = Event("numba:compile", EventStatus.START)


class CompilingBuilder(AutomatonBuilder):
    """Records the niceness of the thread that warms it up, before and after code begins to compile."""

    def __init__(self, notice: BeforeCompiling) -> None:
        self.niceness: list[int] = []
        self._notice = notice

    def warm_up(self) -> None:
        self.niceness.append(niceness())
        for _ in range(2):
            self._notice.on_start(STARTED)
            self.niceness.append(niceness())


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_code_is_compiled_at_a_low_priority_that_later_processes_do_not_have() -> None:
    before, told, threads = niceness(), list[int](), os.listdir("/proc/self/task")
    notice = BeforeCompiling(lambda: told.append(niceness()))
    builder = CompilingBuilder(notice)
    warm_up(builder, notice)
    low = max(before, COMPILING_NICENESS)
    assert builder.niceness == [before, low, low]
    assert told == [low, low]
    assert niceness() == before
    assert os.listdir("/proc/self/task") == threads, "forks would lack the thread"
