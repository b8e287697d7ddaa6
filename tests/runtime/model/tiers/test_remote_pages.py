"""Pages in a store that servers share; its failures cost hits, but no replies."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from arbora.runtime.messages import FlushPages, PagesFound, SavedPages, SavedState
from arbora.runtime.model.tiers import remote
from arbora.runtime.model.tiers.disk import StoredPage
from arbora.runtime.model.tiers.remote import PREFIX, RemoteStore, name
from fakeredis import TcpFakeServer
from hypothesis import given
from hypothesis import strategies as st
from page_world import World, find_end, key_bytes, packed
from served import eventually, serve

SIZE = 100_000
PROGRAMS = ("valkey-server", "redis-server")
SERVERS = ["imitation", *(program for program in PROGRAMS if shutil.which(program))]


@contextlib.contextmanager
def running(kind: str, directory: Path, port: int = 0) -> Iterator[str]:
    """A server's URL; a real one where the machine has any."""
    if kind == "imitation":
        imitation = TcpFakeServer(("127.0.0.1", port), server_type="redis")
        threading.Thread(target=imitation.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{imitation.server_address[1]}/0"
        imitation.shutdown()
        imitation.server_close()
        return
    path = directory / "socket"
    command = [kind, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(f"unix://{path}"))
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url).ping())
    except redis.ConnectionError:
        return False


@pytest.fixture(autouse=True)
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 120.0)


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(request.param, tmp_path_factory.mktemp("r")) as url:
        yield url


@pytest.fixture
def kept_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An imitation may listen there several times, and nobody else in between."""
    with socket.socket() as keeper:
        for name in ("address", "port"):
            monkeypatch.setattr(TcpFakeServer, f"allow_reuse_{name}", True)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def page(number: int, namespace: str = "") -> StoredPage:
    return StoredPage(key(number), namespace, memoryview(content(number)))


def read(store: RemoteStore, number: int, namespace: str = "") -> bool:
    """Whether the page is there; then it is what was written."""
    place = bytearray(SIZE)
    found = store.read(namespace, {key(number): memoryview(place)})
    assert not found or place == content(number)
    return bool(found)


def test_a_server_reads_pages_that_another_wrote(url: str) -> None:
    RemoteStore(url).write([page(1), page(2, "ann/")])
    other = RemoteStore(url)
    assert [read(other, 1), read(other, 2, "ann/"), read(other, 2), read(other, 3)] == [
        True,
        True,
        False,
        False,
    ]


def test_pages_are_read_counted_and_written_in_few_round_trips(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RemoteStore(url)
    assert store.count("", [key(1)]) == 0
    sent = []
    send: Any = redis.connection.AbstractConnection.send_packed_command

    def spy(connection: Any, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(connection, command, check_health)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", spy)
    store.write([page(number) for number in range(8)])
    assert len(sent) == 2  # a page that exists, then one that doesn't
    places = {key(number): memoryview(bytearray(SIZE)) for number in range(8)}
    assert store.read("", places) == {key(number) for number in range(8)}
    assert all(bytes(places[key(number)]) == content(number) for number in range(8))
    assert len(sent) == 3
    assert store.count("", [key(number) for number in range(500)]) == 8
    assert len(sent) == 4
    store.discard("", list(places))
    assert len(sent) == 5
    assert store.count("", list(places)) == 0


@pytest.mark.parametrize("asked", [0, 1, 999, 1000, 1001, 2500])
def test_any_number_of_pages_is_counted(url: str, asked: int) -> None:
    store = RemoteStore(url)
    for at in range(0, 2000, 500):
        store.write([StoredPage(key(number), "", memoryview(b"x")) for number in range(at, at + 500)])
    assert store.count("", [key(number) for number in range(asked)]) == min(asked, 2000)


def test_a_damaged_page_or_one_of_another_size_or_type_is_not_served_but_written_again(url: str) -> None:
    store = RemoteStore(url)
    store.write([page(1), page(2), page(3)])
    server = redis.Redis.from_url(url)
    server.setrange(name("", key(1)), 500, b"x")
    server.set(name("", key(2)), server.get(name("", key(3))) or b"")
    server.set(name("", key(3)), b"")
    server.delete(name("", key(4)))
    server.rpush(name("", key(4)), b"x")
    assert not any(read(store, number) for number in (1, 2, 3, 4))
    RemoteStore(url).write([page(number) for number in (1, 2, 3, 4)])
    assert all(read(store, number) for number in (1, 2, 3, 4))


def test_namespaces_are_forgotten_alone_or_by_scope(url: str) -> None:
    store = RemoteStore(url)
    names = {1: "ann/", 2: "ann/x", 3: "bob/", 4: "bob/*", 5: "bob/[a]x", 6: "bob/a:x"}
    store.write([page(number, namespace) for number, namespace in names.items()])

    def kept() -> set[int]:
        return {number for number, namespace in names.items() if read(store, number, namespace)}

    assert store.forget("ann/", "ann/") == 1
    assert kept() == {2, 3, 4, 5, 6}
    store.forget("bob/*", None)
    assert kept() == {2, 3, 5, 6}
    store.forget("bob/[a]", None)
    assert kept() == {2, 3, 6}
    store.forget("bob/a", "bob/a")
    assert kept() == {2, 3, 6}
    store.forget("bob/", None)
    assert kept() == {2}


def test_pages_that_may_be_wrong_are_given_up(url: str) -> None:
    store = RemoteStore(url)
    store.write([page(1, "ann/"), page(2, "ann/"), page(2, "bob/")])
    store.discard("ann/", [key(2), key(3)])
    assert [read(store, 1, "ann/"), read(store, 2, "ann/"), read(store, 2, "bob/")] == [True, False, True]


def test_ranks_keep_their_parts_of_a_page_beside_each_other(url: str) -> None:
    whole, first, second = (RemoteStore(url, part) for part in ("", "rank-0-of-2", "rank-1-of-2"))
    first.write([page(1, "ann/")])
    assert [store.count("ann/", [key(1)]) for store in (whole, first, second)] == [0, 1, 0]
    second.write([StoredPage(key(1), "ann/", memoryview(content(9)))])
    assert read(first, 1, "ann/")
    assert second.forget("ann/", None) == 2, "the names of all ranks"
    assert not read(first, 1, "ann/")


def test_foreign_values_are_left_alone(url: str) -> None:
    server = redis.Redis.from_url(url)
    server.set("mine", "precious")
    RemoteStore(url).forget("", None)
    assert server.get("mine") == b"precious"


@given(one=st.text(max_size=6), other=st.text(max_size=6))
def test_no_namespaces_names_are_a_prefix_of_anothers(one: str, other: str) -> None:
    if one != other:
        assert not name(one, key(1)).startswith(name(other, b""))


def test_a_server_that_fails_is_left_in_peace_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RemoteStore("redis://127.0.0.1:1/0")
    assert not read(store, 1)
    assert "not read for" in caplog.text
    store.write([page(1)])
    assert "takes no pages for" in caplog.text
    caplog.clear()
    store.write([page(1)])
    assert not read(store, 1)
    assert not caplog.records
    assert store.forget("", "a") is None
    assert len(caplog.records) == 1  # forgetting is tried all the same
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    assert not read(store, 1)
    assert len(caplog.records) == 2


def test_a_server_that_is_full_is_still_read(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RemoteStore(url)
    store.write([page(1)])

    def refused(pipe: Any, name: bytes, value: bytes) -> None:
        pipe.execute_command("SET", name)

    monkeypatch.setattr(redis.client.Pipeline, "set", refused)
    store.write([page(2)])
    store.write([page(3)])
    assert [read(store, number) for number in (1, 2)] == [True, False]
    [record] = caplog.records
    assert record.message.startswith("the remote cache takes no pages for 30 s: ")
    assert "wrong number of arguments" in record.message


def test_a_silent_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        store = RemoteStore(f"redis://127.0.0.1:{mute.getsockname()[1]}/0")
        started = time.monotonic()
        assert not read(store, 1)
        assert time.monotonic() - started < 30.0


def test_a_flush_stores_the_missing_pages_and_another_server_finds_all(url: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = World(tmp_path / "one", places=4, disk=False, remote=RemoteStore(url))
    expected = [one.content(page) for page in range(12)]
    one.save([0, 1], [0, 1])
    one.flush([SavedPages("", key_bytes(list(range(12))), packed(list(range(12))))])
    other = World(tmp_path / "other", places=16, disk=False, remote=RemoteStore(url))
    number, pages = other.fetch(list(range(13)))
    assert pages == 12
    other.restore(number, 0, list(range(12)))
    assert all(torch.equal(other.content(page), expected[page]) for page in range(12))
    other.wait_for_counts(remote_hits=12, host_hits=0)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_is_reachable_again_is_used(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kept_port: int,
) -> None:
    with running(kind, tmp_path, kept_port) as url:
        store = RemoteStore(url)
        store.write([page(1)])
        assert read(store, 1)
    with running(kind, tmp_path, kept_port) as url:
        store.write([page(1)])
        assert read(store, 1)
        assert caplog.text == ""
    assert not read(store, 1)
    assert "not read for" in caplog.text
    with running(kind, tmp_path, kept_port) as url:
        store.write([page(1)])
        assert not read(store, 1)  # it is left in peace yet
        later = time.monotonic() + remote.SILENCE_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)
        store.write([page(1)])
        assert read(store, 1)


def test_a_server_that_is_slow_to_take_pages_is_still_read(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RemoteStore(url)
    store.write([page(1)])
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.0)
    store.write([page(2)])
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 120.0)
    store.write([page(2)])
    assert [read(store, number) for number in (1, 2)] == [True, False]
    [record] = caplog.records
    assert record.message.startswith("the remote cache takes no pages for 30 s: ")


def test_a_slow_server_is_not_asked_for_the_rest_of_many_pages(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RemoteStore(url)
    store.write([StoredPage(key(number), "", memoryview(b"x")) for number in range(1500)])
    execute = redis.client.Pipeline.execute

    def slow(pipe: Any) -> list[Any]:
        answers = execute(pipe)
        later = time.monotonic() + remote.ANSWER_SECONDS * 0.6
        monkeypatch.setattr(time, "monotonic", lambda: later)
        return answers

    monkeypatch.setattr(redis.client.Pipeline, "execute", slow)
    assert store.count("", [key(number) for number in range(1500)]) == 1000
    assert store.count("", [key(number) for number in range(900)]) == 900


def test_forgetting_may_take_many_round_trips(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RemoteStore(url)
    for at in range(0, 4000, 500):
        store.write([StoredPage(key(number), "", memoryview(b"x")) for number in range(at, at + 500)])
    scan = redis.Redis.scan

    def slow(server: Any, *options: Any, **others: Any) -> Any:
        later = time.monotonic() + remote.ANSWER_SECONDS * 0.6
        monkeypatch.setattr(time, "monotonic", lambda: later)
        return scan(server, *options, **others)

    monkeypatch.setattr(redis.Redis, "scan", slow)
    assert store.forget("", None) == 4000


def test_another_server_finds_the_pages_that_the_first_computed(served_model: Path, tmp_path: Path) -> None:
    with running(SERVERS[-1], tmp_path) as url:
        check_sharing(served_model, url)


def await_pages(stored: redis.Redis, pages: int) -> None:
    eventually(lambda: stored.dbsize() >= pages)


def check_sharing(served_model: Path, url: str) -> None:
    prompt = "The fox and the crow met by the river, and this is what they said to each other. " * 6
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
    answers = []
    stored = redis.Redis.from_url(url)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            flags = ("--remote-cache", url, "--write-policy", "write_through")
            server = stack.enter_context(serve(served_model, *flags))
            answer = server.http.post("/v1/completions", json=body).json()
            answers.append((answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]))
            usage = answer["usage"]["prompt_tokens"]
            await_pages(stored, usage // 16)
    assert answers[0][0] == answers[1][0]
    assert answers[0][1]["cached_tokens"] == 0
    assert answers[1][1]["cached_tokens"] == (usage - 1) // 16 * 16
    assert len(list(stored.scan_iter(match=PREFIX + b"*"))) == stored.dbsize() > 0


def test_states_are_found_on_the_server(url: str, tmp_path: Path) -> None:
    state = [SavedState("", key_bytes([100]), 1)]
    store = RemoteStore(url)
    first = World(tmp_path, places=8, disk=False, remote=store, states=2)
    first.states.tensors[0].fill_(7)
    first.mover.flush(FlushPages([SavedPages("", key_bytes([1]), packed([1]))], [], state))
    (tmp_path / "second").mkdir()
    second = World(tmp_path / "second", places=8, disk=False, remote=RemoteStore(url), states=2)
    found = find_end(second, [1, 2, 3], [([100, 200, 300], [1, 1, 1])])
    assert found == PagesFound(1, 1 + 3, 1)
