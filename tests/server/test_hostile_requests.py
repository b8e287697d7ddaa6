"""Every hostile grammar and body once, at a server with all its processes: others hardly notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from canary import Canary
from hostile_run import corpus, send_corpus
from served import Served, eventually, serve

ANSWERED_WITHIN_S = 60.0
SILENT_AT_MOST_S = 20.0  # on a busy machine of two cores; without a limit it was minutes
SHARE = 0.2  # of the bodies' full size
DEPTHS = (4_000,)


@pytest.fixture(scope="module")
def target(roomy_model: Path) -> Iterator[Served]:
    with serve(roomy_model, "--kv-memory", "16MiB") as server:
        yield server


def test_hostile_requests_are_answered_while_others_continue_and_no_process_ends(target: Served) -> None:
    pids = {"supervisor": target.process.pid, **target.children}
    with Canary(target.url) as canary:
        answered = asyncio.run(send_corpus(target.url, corpus(SHARE, DEPTHS), 4, ANSWERED_WITHIN_S))
    assert [name for name, answer, _ in answered if answer is None] == []
    wrong = {name: answer.status for name, answer, _ in answered if answer and answer.status >= 500}
    assert wrong == {}
    for name, answer, _ in answered:
        if answer is not None and answer.status != 200:
            assert json.loads(answer.body)["error"]["message"], name
    assert canary.faults == []
    assert canary.streams > 0
    assert canary.ping_gap < SILENT_AT_MOST_S
    assert canary.stream_gap < SILENT_AT_MOST_S
    assert {"supervisor": target.process.pid, **target.children} == pids
    eventually(lambda: target.is_quiet)
    assert "Traceback" not in "".join(target.log)
