"""Fixtures that several files share, and what keeps a slow or loaded machine from failing tests by chance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import interpreted_triton  # noqa: F401 (first: others may import Triton)
import pytest
import torch
import zmq
from arbora.grammars.service import compiler_selector
from distribution import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: F401 (hooks)
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from served import Served, eventually, serve, write_served_checkpoint
from simulated_machine import SimulatedMachine

# In CI hypothesis draws the same examples each time, so constants that it finds in our imported modules are
# left out there. Elsewhere each run explores. No machine is too slow.
if settings.get_current_profile_name() == "ci" and hasattr(providers, "_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


# A failed test leaves its sockets open, and garbage collection would wait for them for ever.
zmq.Context.__del__ = lambda self: None  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def own_data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the user's stored responses, files and batches apart from those of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def same_random_tensors() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def patient_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each grammar the time for an automaton. Tests of the deadline set their own."""
    monkeypatch.setattr(compiler_selector, "DEADLINE_S", 60.0)


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served_checkpoint(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose replies may last longer than a loaded machine keeps a test waiting."""
    return write_served_checkpoint(tmp_path_factory.mktemp("roomy") / "tiny", context=1 << 15)


@pytest.fixture(scope="session")
def server(served_model: Path) -> Iterator[Served]:
    with serve(served_model) as server:
        yield server


@pytest.fixture
def served(server: Served) -> Iterator[Served]:
    """One server with all its processes, for tests that leave it as it was; their requests end with them."""
    yield server
    eventually(lambda: server.is_quiet)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    """A machine whose cores, NUMA nodes and control groups a test chooses."""
    simulated = SimulatedMachine(tmp_path / "machine", monkeypatch)
    yield simulated
    simulated.forget()
