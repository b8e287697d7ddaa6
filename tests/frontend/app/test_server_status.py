"""GET /server, /server/requests and /server/history: the state, the requests, the last hour."""

from __future__ import annotations

import asyncio
import json
import math
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from arbora.frontend.core.replica.engine_client import ReplicaStats
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.http import request_records
from arbora.frontend.http.history import MAX_SAMPLES, SERIES, History, find_quantile
from arbora.frontend.http.metrics import Metrics
from arbora.frontend.http.scheduler_metrics import SchedulerStats
from arbora.runtime.api_keys import ApiKey, key_hash
from arbora.runtime.messages import Stats, StoreCounts
from fake_scheduler import ready
from http_world import HELLO, HttpWorld, error_of, http_world
from tiny_model import write_tiny_model

PRIVATE = [{"role": "user", "content": "a very private question"}]
STATS = Stats(0, 2, 1, 64, 10, 20, 3, 0, 0, 0, 0, 0, 0, 0, 0, StoreCounts(host_pages=7, disk_pages=9))


async def show(world: HttpWorld, path: str, key: str = "") -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = await world.http.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(world: HttpWorld, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"messages": HELLO, **fields}
    return await world.http.post("/v1/chat/completions", json=body, headers=headers)


async def recorded(world: HttpWorld, number: int, key: str = "") -> Any:
    """The caller's requests, once so many have ended: the client has an answer before it is recorded."""
    async with asyncio.timeout(60):
        while len((shown := await show(world, "/server/requests", key))["recent"]) < number:
            await asyncio.sleep(0.01)
    return shown


# The state


async def test_the_state_follows_the_model() -> None:
    async with http_world(replica=False) as world:
        world.supervisor.peer_down()
        starting = await show(world, "/server")
        assert (starting["state"], starting["max_model_len"], starting["pages"]) == ("starting", None, None)
        await world.start_replica()
        ready = await show(world, "/server")
        assert (ready["state"], ready["model"], ready["device"]) == ("ready", "tiny", "cpu")
        assert (ready["max_model_len"], ready["adapters"], ready["http_processes"]) == (256, [], 1)
        assert ready["pages"] == [
            {"layers": 2, "reach": None, "total": 64, "free": 59, "cached": 3, "used": 2},
        ]
        await world.kill_replica()
        assert (await show(world, "/server"))["state"] == "restarting"
        assert (await show(world, "/server/requests"))["open"] is None
        world.engine.drain_requested.set()
        assert world.engine.state == "draining"


# Requests


async def test_an_ended_request_is_shown_with_its_numbers_and_no_text() -> None:
    async with http_world() as world:
        answer = await ask(world, messages=PRIVATE)
        (record,) = (shown := await recorded(world, 1))["recent"]
    assert "private" not in json.dumps(shown) and "how are you" not in json.dumps(shown)
    assert (record["method"], record["path"], record["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (record["id"], record["finish"], record["model"]) == (
        answer.headers["x-request-id"],
        ["stop"],
        "tiny",
    )
    usage = answer.json()["usage"]
    assert (record["prompt_tokens"], record["output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert record["cached_tokens"] == 0 and record["first_token_s"] > 0 and record["tokens_per_s"] > 0
    assert shown["failed"] == []


async def test_a_failed_request_is_shown_with_its_reason_but_not_what_it_quotes() -> None:
    async with http_world() as world:
        await ask(world, max_tokens="a very private text")
        (record,) = (shown := await recorded(world, 1))["failed"]
    assert (record["status"], record["code"]) == (400, "invalid_type")
    assert record["reason"] == "max_tokens is …, but must be an integer."
    assert shown["recent"] == [record] and "private" not in json.dumps(shown)


async def test_an_open_request_is_shown_with_its_state() -> None:
    async with http_world(replica=False) as world:
        scheduler = await world.start_replica(paused=True)
        asked = asyncio.create_task(ask(world))
        await world.until(lambda: bool(scheduler.rows))
        shown = await show(world, "/server/requests")
        scheduler.gate.set()
        id = (await asked).json()["id"]
    assert shown["open_total"] == 1 and shown["recent"] == []
    assert [(each["id"], each["state"]) for each in shown["open"]] == [(f"{id}-0", "decode")]
    assert shown["open"][0]["prompt_tokens"] > 0


async def test_a_key_sees_its_own_requests_alone() -> None:
    keys = [ApiKey(sha256=key_hash(name), name=name) for name in ("ada", "bob")]
    async with http_world(api_keys=keys, replica=False) as world:
        scheduler = await world.start_replica()
        await ask(world, "ada")
        await ask(world, "bob", max_tokens=0.5)
        await ask(world, "nobody")
        (ada,) = (await recorded(world, 1, "ada"))["recent"]
        assert ada["key"] == "ada"
        bob = await recorded(world, 1, "bob")
        assert [each["key"] for each in (*bob["recent"], *bob["failed"])] == ["bob", "bob"]
        scheduler.gate.clear()
        asked = asyncio.create_task(ask(world, "ada"))
        await world.until(lambda: bool(scheduler.rows))
        assert len((await show(world, "/server/requests", "ada"))["open"]) == 1
        bob = await show(world, "/server/requests", "bob")
        assert (bob["open"], bob["open_total"]) == ([], 0)
        scheduler.gate.set()
        await asked


@pytest.mark.parametrize("path", ["/server", "/server/requests", "/server/history"])
async def test_the_paths_need_a_key(path: str) -> None:
    async with http_world(api_keys=("secret",)) as world:
        assert (await world.http.get(path)).status_code == 401
        await show(world, path, "secret")


async def test_a_bounded_number_of_requests_is_kept_and_polls_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_records, "MAX_RECENT", 3)
    monkeypatch.setattr(request_records, "MAX_FAILED", 2)
    async with http_world() as world:
        for path in ("/health", "/server", "/cache/tree/999", "/page/0/none.js"):
            await world.http.get(path)
        for number in range(3):
            await error_of(world, "/v1/completions", {"prompt": "a", "max_tokens": -1, "n": number + 1})
        for _ in range(3):
            await ask(world)
        async with asyncio.timeout(60):
            while (shown := await show(world, "/server/requests"))["recent"][-1]["status"] != 200:
                await asyncio.sleep(0.01)
    assert [each["status"] for each in shown["recent"]] == [200, 200, 200]
    assert [each["status"] for each in shown["failed"]] == [400, 400]
    times = [each["ended_at"] for each in shown["recent"]]
    assert times == sorted(times, reverse=True)


# The history


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    return Metrics([PromptMemo(Tokenizer.load(write_tiny_model(tmp_path / "model")))], {"tiny": tmp_path})


def test_a_sample_has_rates_and_quantiles_of_the_last_window(metrics: Metrics) -> None:
    history = History(metrics)
    history.add(100.0, STATS)
    metrics.failed.labels(429).inc(10)
    metrics.failed.labels(418).inc(5)
    metrics.missed.labels("new").inc(40)
    for seconds in (0.15, 0.15, 0.15, 0.4):
        metrics.first_token.observe(seconds)
    history.add(105.0, STATS)
    shown = history.show(5, 0, 106.0)
    assert shown.times == [100.0, 105.0] and set(shown.series) == set(SERIES)
    first, last = ({name: values[i] for name, values in shown.series.items()} for i in (0, 1))
    assert first["errors_429"] is None and first["first_token_p50"] is None, "there is no earlier sample"
    assert (last["errors_429"], last["errors_4xx"], last["errors_503"]) == (2, 1, 0)
    assert (last["missed_new"], last["missed_off"], last["hit_rate"]) == (8, 0, None)
    assert last["first_token_p50"] == pytest.approx(0.1 + 0.1 * 2 / 3, rel=1e-3)
    assert last["first_token_p95"] == pytest.approx(0.2 + 0.3 * 0.8, rel=1e-3)
    pages = ("free", "cached", "locked", "pinned", "host", "disk")
    assert [last[f"pages_{name}"] for name in pages] == [34, 20, 7, 3, 7, 9]
    assert (last["requests_running"], last["requests_waiting"]) == (2, 1)


def test_rates_survive_a_restart_of_the_counters(metrics: Metrics) -> None:
    history = History(metrics)
    for number, tokens in enumerate((100, 150, 40)):
        stats = msgspec.structs.replace(STATS, output_tokens=tokens)
        metrics.schedulers = {"tiny": SchedulerStats(None)}
        metrics.schedulers["tiny"].update([ReplicaStats(0, 1, ready(256, 256), stats)])
        history.add(10.0 * (number + 1), stats)
    assert history.show(5, 0, 30.0).series["output_tokens"] == [None, 5, 2]


def test_the_counters_of_earlier_starts_are_kept_as_one_sum() -> None:
    schedulers = SchedulerStats(None)
    starts = [(epoch, 10 * epoch) for epoch in range(1, 101)]
    for epoch, tokens in starts:
        for replica in (0, 1):
            stats = msgspec.structs.replace(STATS, output_tokens=tokens)
            schedulers.update([ReplicaStats(replica, 2 * epoch + replica, ready(256, 256), stats)], 2)
    values = {each.name: each.samples[0].value for each in schedulers.collect()}
    assert values["arbora_output_tokens"] == 2 * sum(tokens for _, tokens in starts)
    assert len(schedulers._counts) == 2


def test_a_sample_tells_the_gain_of_drafts_only_if_there_were_some(metrics: Metrics) -> None:
    history = History(metrics)
    counts: list[tuple[int, dict[str, int], dict[str, int]]] = [
        (100, {}, {}),
        (200, {}, {}),
        (250, {"request": 60, "replies": 40}, {"request": 30, "replies": 40}),
    ]
    for number, (steps, drafted, accepted) in enumerate(counts):
        stats = msgspec.structs.replace(STATS, reply_steps=steps, drafted=drafted, accepted=accepted)
        metrics.schedulers["tiny"].update([ReplicaStats(0, 1, ready(256, 256), stats)])
        history.add(10.0 * (number + 1), stats)
    series = history.show(5, 0, 30.0).series
    assert series["tokens_a_step"] == [None, None, pytest.approx(1 + 70 / 150, abs=0.001)]
    assert series["drafts_accepted"] == [None, None, 0.7]


def test_the_history_is_bounded_and_small(metrics: Metrics) -> None:
    history = History(metrics)
    for number in range(MAX_SAMPLES + 10):
        history.add(5.0 * number, STATS)
    now = 5.0 * (MAX_SAMPLES + 9)
    assert len(history.show(60, 0, now).times) == MAX_SAMPLES == 720
    assert len(history.show(5, 0, now).times) == 60
    assert history.show(60, now - 10, now).times == [now - 5, now]
    assert MAX_SAMPLES * (4 * len(SERIES) + 8) < 200_000


def test_the_history_is_shown_on_another_thread_while_it_grows(metrics: Metrics) -> None:
    history = History(metrics)
    for number in range(MAX_SAMPLES):
        history.add(5.0 * number, STATS)
    failures = list[RuntimeError]()

    def show() -> None:
        try:
            while not is_over.is_set():
                history.show(60, 1e9, 0.0)
        except RuntimeError as error:
            failures.append(error)

    is_over, thread = threading.Event(), threading.Thread(target=show)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for number in range(300):
            history.add(5.0 * (MAX_SAMPLES + number), STATS)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert failures == []


async def test_a_sample_that_fails_ends_neither_the_history_nor_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arbora.frontend.http.history.INTERVAL_S", 0.01)
    read, failed = Metrics.read_counts, asyncio.Event()

    def fail_once(metrics: Metrics) -> Any:
        if failed.is_set():
            return read(metrics)
        failed.set()
        raise struct.error("unpack requires a buffer of 4 bytes")  # the file is still empty

    monkeypatch.setattr(Metrics, "read_counts", fail_once)
    async with http_world() as world, asyncio.timeout(60):
        while not (await show(world, "/server/history"))["times"]:
            await asyncio.sleep(0.01)


def test_without_the_scheduler_its_gauges_are_unknown(metrics: Metrics) -> None:
    history = History(metrics)
    history.add(1.0, None)
    series = history.show(5, 0, 2.0).series
    assert series["requests_running"] == series["pages_disk"] == [None]


def test_a_quantile_lies_in_its_bucket() -> None:
    assert math.isnan(find_quantile([(1.0, 0), (math.inf, 0)], 0.5))
    assert find_quantile([(1.0, 0), (3.0, 4), (math.inf, 4)], 0.5) == 2.0
    assert find_quantile([(1.0, 0), (math.inf, 4)], 0.95) == 1.0


@pytest.mark.parametrize(
    "query",
    ["minutes=0", "minutes=61", "minutes=1.5", "minutes=x", "after=nan", "after=1&after=2", "hours=1"],
)
async def test_a_wrong_parameter_is_refused(query: str) -> None:
    param = query.partition("=")[0]
    async with http_world() as world:
        answer = await world.http.get(f"/server/history?{query}")
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param and param in error["message"]


async def test_the_history_grows_by_a_sample_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.frontend.http.history.INTERVAL_S", 0.01)
    async with http_world() as world:
        async with asyncio.timeout(60):
            while len((shown := await show(world, "/server/history?minutes=5"))["times"]) < 3:
                await asyncio.sleep(0.01)
        last = shown["times"][-1]
        later = await show(world, f"/server/history?after={last}")
        assert all(time > last for time in later["times"])
    assert shown["series"]["pages_free"][-1] == 59
