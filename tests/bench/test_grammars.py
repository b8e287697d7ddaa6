"""The benchmark of grammars goes on where our own compiler gives up."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "grammars.py"
    spec = spec_from_file_location("bench_grammars", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_grammars", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_instances_of_a_schema_with_too_many_overlaps_keep_their_own_order(
    bench: ModuleType, tmp_path: Path
) -> None:
    alternatives = [{"properties": {f"n{number}": {"type": "string"}}} for number in range(22)]
    data = {"n1": "b", "n0": "a"}
    for name, schema in (("many", {"oneOf": alternatives}), ("few", {"oneOf": alternatives[:2]})):
        case = {"schema": schema, "tests": [{"valid": True, "data": data}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(case))
    corpus = bench.Corpus(tmp_path)
    assert corpus.instances(1, ordered=True, whitespace="compact") == [(True, b'{"n1":"b","n0":"a"}')]
    assert corpus.instances(0, ordered=True, whitespace="compact") == [(True, b'{"n0":"a","n1":"b"}')]
