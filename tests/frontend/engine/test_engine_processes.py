"""The processes of an `Engine`: their start, their deaths and their end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import arbora
import pytest
from arbora.frontend.core.prepare import Job
from arbora.frontend.core.service import Service
from arbora.frontend.engine import work
from arbora.frontend.engine.requests import prepare_completion
from arbora.frontend.engine.thread import EngineThread
from arbora.frontend.ray_serve.settings import ModelSettings
from processes import children_of, command_line, is_alive
from tiny_checkpoint import write_tiny_checkpoint

MEMORY = "4MiB"


def test_a_killed_model_process_is_started_again(model: str) -> None:
    others = children_of(os.getpid())
    with arbora.Engine(model, device="cpu", kv_memory=MEMORY) as engine:
        before = engine.generate("Hello", max_tokens=5, seed=1)
        own = children_of(os.getpid()) - others
        (victim,) = [pid for pid in own if "arbora.runtime.model.process" in command_line(pid)]
        os.kill(victim, signal.SIGKILL)
        assert engine.generate("Hello", max_tokens=5, seed=1).text == before.text
    assert not children_of(os.getpid()) - others


def test_the_engine_of_a_replica_on_ray_has_the_ranks_of_its_options(model: str) -> None:
    others = children_of(os.getpid())
    options = {"device": "cpu", "kv_memory": MEMORY, "tp": 2}
    thread = EngineThread(ModelSettings(model, "m", options, max_numbers=4).build_config())
    try:
        own = children_of(os.getpid()) - others
        assert ["arbora.runtime.model.process" in command_line(pid) for pid in own].count(True) == 2
    finally:
        thread.close()
    assert not children_of(os.getpid()) - others


def test_a_request_begins_again_if_the_model_process_dies_while_it_is_prepared(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = children_of(os.getpid())
    victims: list[int] = []

    async def prepare_while_the_model_dies(service: Service, *rest: Any) -> Job:
        request = await prepare_completion(service, *rest)
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)
            while service.engine.is_up:
                await asyncio.sleep(0.01)
        return request

    monkeypatch.setattr(work, "prepare_completion", prepare_while_the_model_dies)
    with arbora.Engine(model, device="cpu", kv_memory=MEMORY) as engine:
        before = engine.generate("Hello", max_tokens=5, seed=1)
        own = children_of(os.getpid()) - others
        victims += [pid for pid in own if "arbora.runtime.model.process" in command_line(pid)]
        assert victims
        assert engine.generate("Hello", max_tokens=5, seed=1).text == before.text
    assert not victims


def test_an_interrupted_start_leaves_no_process(model: str) -> None:
    script = f"""
import signal, arbora
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
arbora.Engine({model!r}, device='cpu', kv_memory={MEMORY!r})
"""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    run = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
    loading: set[int] = set()
    while not loading and run.poll() is None:
        children = children_of(run.pid)
        loading = {pid for pid in children if "arbora.runtime.model.process" in command_line(pid)}
    (stopped,) = loading
    os.kill(stopped, signal.SIGSTOP)  # so that the start can't end
    children = children_of(run.pid)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert errors.endswith("KeyboardInterrupt\n")
    assert not any(is_alive(pid) for pid in children)


def test_a_model_that_can_not_be_loaded_is_refused_and_leaves_nothing(model: str, tmp_path: Path) -> None:
    broken = write_tiny_checkpoint(tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    with pytest.raises(arbora.ConfigError, match="48"):
        arbora.Engine(str(broken), device="cpu", kv_memory=MEMORY)


def test_a_failed_start_says_only_why_and_names_keywords(model: str, tmp_path: Path) -> None:
    broken = write_tiny_checkpoint(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    script = f"""
import arbora
for path, memory in (({model!r}, "1KiB"), ({str(broken)!r}, "4MiB")):
    try:
        arbora.Engine(path, device="cpu", kv_memory=memory)
    except arbora.ConfigError as error:
        print(error)
"""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300
    )
    assert (run.stderr, run.returncode) == ("", 0)
    too_small, unreadable = run.stdout.splitlines()
    assert "Raise kv_memory or lower max_model_len." in too_small and "--" not in too_small
    assert "tokenizer.json can't be read" in unreadable


def test_a_closed_engine_says_so(model: str) -> None:
    engine = arbora.Engine(model, device="cpu", kv_memory=MEMORY)
    engine.close()
    engine.close()
    with pytest.raises(arbora.ServerError, match="the engine is closed"):
        engine.generate("Hello")


def test_requests_that_are_open_at_the_close_say_that_the_engine_is_closed(model: str) -> None:
    @arbora.program
    def long(s: arbora.State) -> None:
        s += "Hello" + arbora.gen("more", max_tokens=200, ignore_eos=True)

    engine = arbora.Engine(model, device="cpu", kv_memory=MEMORY)
    with ThreadPoolExecutor(2) as threads:
        parts = engine.stream("Hello", max_tokens=200, ignore_eos=True)
        next(parts)
        alone = threads.submit(engine.generate, "Hello", max_tokens=200, ignore_eos=True)
        program = threads.submit(long.run, backend=engine)
        time.sleep(0.05)
        engine.close()
        with pytest.raises(arbora.ServerError, match="the engine is closed"):
            list(parts)
        with pytest.raises(arbora.ServerError, match="the engine is closed"):
            alone.result()
        with pytest.raises(arbora.ProgramError, match="the engine is closed"):
            program.result()


def test_a_script_needs_no_main_guard_and_no_close(model: str) -> None:
    script = f"""
import arbora
engine = arbora.Engine({model!r}, device="cpu", kv_memory={MEMORY!r})
print(len(engine.generate("Hello", max_tokens=3, ignore_eos=True).tokens))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        environment = {**os.environ, "TMPDIR": directory, "PYTHONSAFEPATH": "1"}
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300
        )
        assert (run.stdout, run.stderr, run.returncode) == ("3\n", "", 0)
        assert os.listdir(directory) == []
