"""`arbora doctor`: each check's level and fix, and the exit code."""

from __future__ import annotations

import json
import resource
import socket
from typing import Any

import pytest
from arbora.frontend.cli.doctor import machine, software
from arbora.frontend.cli.doctor.machine import Finding, check_threads
from arbora.frontend.cli.main import main
from simulated_machine import SimulatedMachine


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--json", *options])
    found = json.loads(capsys.readouterr().out)["findings"]
    return code, {finding["name"]: finding for finding in found}


def test_this_machine_has_all_that_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys, "--port", "0")
    assert [name for name, finding in found.items() if finding["level"] == "error"] == [] and code == 0
    names = "python version packages torch triton cpu threads gpu compiler memory port"
    assert set(found) == {*names.split(), "open files", "kernel cache", "model cache"}
    assert " logical)" in found["threads"]["text"] and "iB free of" in found["memory"]["text"]


def test_a_port_in_use_is_a_warning_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, found = doctor(capsys, "--port", str(port))
    assert code == 0
    assert found["port"] == {
        "name": "port",
        "level": "warning",
        "text": f"127.0.0.1:{port}: Address already in use",
        "fix": "Stop what uses the port or choose another one with --port (make serve: PORT=…).",
    }


def test_an_error_gives_the_exit_code_1_and_shows_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    assert main(["doctor", "--port", "0"]) == 1
    said = capsys.readouterr().out
    assert "error   kernel cache /proc can't be written" in said
    assert "Make it writable, or set XDG_CACHE_HOME or NUMBA_CACHE_DIR" in said


def test_few_open_files_are_a_warning_with_the_command_to_run() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        found = machine.check_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.level == "warning" and "512 files" in found.text
    assert f"ulimit -n {min(hard, 65536)}" in found.fix


def test_an_old_installation_is_a_warning() -> None:
    assert software.check_version("0.0.9").level == "warning"
    assert software.check_version("0.1.0").level == "ok"


def test_a_missing_or_old_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        requires = ("httpx>=99", "no-such-package>=1", "numpy>=1.0", 'redis>=99; extra == "remote"')

    monkeypatch.setattr(software, "distribution", lambda name: Distribution)
    found = software.check_packages()
    assert found.level == "error" and found.fix.endswith("-m pip install --upgrade arbora`.")
    assert "no-such-package is missing" in found.text and "but >=99 is needed" in found.text
    assert "numpy" not in found.text and "redis" not in found.text


def test_a_gpu_needs_a_torch_for_cuda_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(software, "find_spec", lambda name: None)
    assert software.check_torch("cuda").level == "error"
    assert software.check_triton("cuda") == Finding(
        "error", "missing, but the GPU's kernels need it", "Run `pip install triton`."
    )
    assert (software.check_torch("cpu").level, software.check_triton("cpu").level) == ("ok", "ok")


def test_a_check_that_breaks_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> Finding:
        raise ImportError("libtorch is gone")

    monkeypatch.setattr(machine, "check_memory", breaks)
    code, found = doctor(capsys, "--port", "0")
    assert code == 1 and found["memory"]["text"] == "ImportError: libtorch is gone"
    assert "port" in found


def test_the_threads_are_one_for_each_core(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine.has_sockets(2, 8)
    found = check_threads()
    assert found.level == "ok"
    assert found.text == "16 cores (32 logical), on 2 NUMA nodes; models run on 16 threads, one for each core"
    machine.allows([0])
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    assert check_threads().text == (
        "1 core (1 logical) of the 32 logical ones in the machine, by the affinity mask; "
        "models run on 1 thread, one for each core"
    )


def test_a_quota_and_the_file_that_sets_it_are_shown(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine.has_sockets(1, 8)
    machine.is_in("0::/")
    file = machine.write("sys/fs/cgroup/unified/cpu.max", "250000 100000")
    text = f"8 cores (16 logical); a quota of 2.5 CPUs ({file}); models run on 3 threads, as the quota allows"
    assert check_threads() == Finding("ok", text)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert check_threads().level == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    found = check_threads()
    assert found.level == "warning"
    assert found.text.endswith(
        "models run on 8 threads, as OMP_NUM_THREADS says, more than the quota allows, "
        "so they wait for each other"
    )
    assert found.fix == "Unset OMP_NUM_THREADS, or set it to a number from 1 to 3."


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        ("9", "9 threads, as OMP_NUM_THREADS says, more than there are cores"),
        ("0", "OMP_NUM_THREADS=0 is no number of threads"),
        ("all", "OMP_NUM_THREADS=all is no number of threads"),
    ],
)
def test_a_useless_number_of_threads_is_a_warning_with_a_fix(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch, threads: str, words: str
) -> None:
    machine.has_sockets(1, 8)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    found = check_threads()
    assert found.level == "warning" and words in found.text
    assert found.fix == "Unset OMP_NUM_THREADS, or set it to a number from 1 to 8."
    monkeypatch.setenv("OMP_NUM_THREADS", "8,1")
    assert check_threads().level == "ok"
