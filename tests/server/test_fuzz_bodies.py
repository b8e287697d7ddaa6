"""Generated and mutated requests to every endpoint: each is answered as documented, and no process ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_bodies import case
from fuzz_run import send_all
from served import PATIENT, Served, eventually, serve

REQUESTS = 1000
SEED = int(os.environ.get("ARBORA_FUZZ_SEED", "14"))


@pytest.fixture(scope="module")
def target(served_model: Path) -> Iterator[Served]:
    """A short context bounds the replies of requests that lost their `max_tokens`."""
    with serve(served_model, "--max-model-len", "512", program=(PATIENT,)) as server:
        yield server


def test_equal_seeds_and_numbers_give_equal_requests() -> None:
    assert [case(1, number) for number in range(50)] == [case(1, number) for number in range(50)]
    assert [case(1, number) for number in range(50)] != [case(2, number) for number in range(50)]


def test_every_request_is_answered_as_documented_and_no_process_ends(target: Served) -> None:
    pids = {"supervisor": target.process.pid, **target.children}
    outcome = asyncio.run(send_all(target.url, (case(SEED, number) for number in range(REQUESTS)), 8))
    assert not outcome.faults, f"{len(outcome.faults)} faults\n" + "\n".join(outcome.faults[:20])
    assert sum(outcome.statuses.values()) == REQUESTS
    assert not outcome.busy, "eight connections are too few to fill a server"
    assert outcome.statuses[200] > REQUESTS / 10
    assert outcome.statuses[400] > REQUESTS / 10
    assert {"supervisor": target.process.pid, **target.children} == pids
    assert target.is_healthy
    eventually(lambda: target.is_quiet)
    sizes = target.http.get("/cache").json()["sizes"]
    assert sizes["total"]["pages"] == sizes["free"]["pages"] + sizes["cached"]["pages"]
    assert "Traceback" not in "".join(target.log)
