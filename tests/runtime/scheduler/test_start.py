"""What the scheduler process starts before the model is ready."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from arbora.runtime.config import ServeConfig
from arbora.runtime.processes.child import ChildArguments
from arbora.runtime.processes.heartbeat import Heartbeat
from arbora.runtime.scheduler import process
from grammar_world import vocabulary


class ModelAwaitedError(Exception):
    """Ends the loop where it would wait for the model."""


@pytest.mark.parametrize(("cores", "order"), [(8, ["workers", "model"]), (2, ["model"])])
def test_grammar_workers_start_while_the_model_loads_if_there_is_a_core_for_them(
    cores: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Compiler:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def start(self) -> None:
            seen.append("workers")

    def wait_for_model(self: process.Loop) -> None:
        seen.append("model")
        raise ModelAwaitedError

    monkeypatch.setattr(process, "count_usable_cores", lambda: cores)
    monkeypatch.setattr(process, "GrammarCompiler", Compiler)
    monkeypatch.setattr(process, "_wait_for_vocabulary", lambda directory: vocabulary())
    monkeypatch.setattr(process, "_load_tokenizer", lambda *_: None)
    monkeypatch.setattr(process.Loop, "_wait_for_model", wait_for_model)
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        arguments = ChildArguments(Path(name), 1, 0, os.getpid())
        config = ServeConfig(model=Path("model"), served_model_name="tiny")
        with pytest.raises(ModelAwaitedError):
            process.Loop(arguments, config, Heartbeat()).run()
    assert seen == order
