"""Pages go from a prefill server's host memory to a decode server's, and a fetch ends whatever happens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import (
    PREFILL_CLIENT,
    Abort,
    FindPages,
    Generate,
    Output,
    Outputs,
    Refused,
    ReplyError,
    SchedulerInbox,
)
from arbora.runtime.model.tiers import PrefillPeers, PrefillServer, prefill_peers, prefill_server
from arbora.runtime.model.tiers.fetches import Fetches
from arbora.runtime.model.tiers.host_memory import HostMemory
from arbora.runtime.model.tiers.host_pool import HostPool
from arbora.runtime.model.tiers.lower_tiers import LowerTiers
from arbora.runtime.processes.sockets import Inbox, Outbox
from hypothesis import given, settings
from hypothesis import strategies as st
from page_world import key_bytes
from served import eventually

MODEL = b"m" * 32
PLACE_BYTES = 32
PROMPT = b"the tokens of the prompt"


def content_of(number: int) -> bytes:
    return bytes([number]) * PLACE_BYTES


class Pair:
    """A prefill server and a decode server, each with host memory, joined by a socket."""

    def __init__(self, directory: Path, places: int = 64, model: bytes = MODEL) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = f"ipc://{directory}/prefill"
        scheduler = f"ipc://{directory}/scheduler"
        self.scheduler: Inbox[SchedulerInbox] = Inbox(self.context, scheduler, SchedulerInbox, 1)
        self.to_scheduler = Outbox(self.context, scheduler, 1)
        self.there = HostPool(HostMemory(64 * PLACE_BYTES, pinned=False), PLACE_BYTES)
        self.here = HostPool(HostMemory(places * PLACE_BYTES, pinned=False), PLACE_BYTES)
        self.server: PrefillServer | None = None
        self.start_server()
        self.peers = PrefillPeers(self.context, [self.address], model, self.here)
        self.fetches = Fetches(self.here, LowerTiers(None, None), (1,))
        self.fetches.peers = self.peers
        self.ready: dict[int, int] = {}

    def start_server(self) -> None:
        self.server = PrefillServer(self.context, self.address, MODEL, self.there)

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.socket.close(linger=0)
        self.server = None

    def connect(self) -> Pair:
        self.until(lambda: self.peers._peers[0].is_connected)
        return self

    def advance(self) -> None:
        """Lets both servers' page stores do what they can."""
        if self.server is not None:
            self.server.advance(self.to_scheduler)
        self.peers.advance()
        while self.fetches.is_busy:
            if (ready := self.fetches.advance()) is not None:
                self.ready[ready[0]] = ready[1]

    def until(self, condition: Callable[[], bool]) -> None:
        def advance_and_check() -> bool:
            self.advance()
            return condition()

        eventually(advance_and_check)

    def compute(self, *numbers: int, pool: HostPool | None = None) -> None:
        """Saves pages to the prefill server's host memory, or to `pool`."""
        pool = self.there if pool is None else pool
        for number in numbers:
            entry = pool.reserve(key_bytes([number]))
            assert entry is not None
            pool.content(entry)[:] = content_of(number)
            pool.enter(entry, to_write=False)
            pool.release([entry])

    def find(self, numbers: range, fetch: int = 1) -> int:
        """Begins and reads a fetch of a prompt's pages, all of which the tree lacks."""
        keys = key_bytes(list(numbers))
        found = self.fetches.find(FindPages(fetch, "", keys, prompt=PROMPT)).pages
        if found:
            self.fetches.read(fetch)
        return found

    def sent_to_scheduler(self) -> SchedulerInbox:
        message: list[SchedulerInbox | None] = []

        def receive() -> bool:
            message[:] = [self.scheduler.receive(0)]
            return message != [None]

        self.until(receive)
        assert message[0] is not None
        return message[0]

    def end_request(self, request: Generate) -> None:
        assert self.server is not None
        self.server.note(Outputs([Output(request.request, b"\1\0\0\0", finish="length")]))

    def contents(self, fetch: int, count: int) -> list[bytes]:
        return [bytes(self.here.memory[place].numpy()) for place in self.fetches.places(fetch, 0, count)]

    def has_no_holds(self) -> bool:
        return all(len(pool._free) + len(pool._idle) == pool.places for pool in (self.here, self.there))

    def close(self) -> None:
        self.context.destroy(linger=0)


@dataclass
class Clock:
    now: float

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    clock = Clock(time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def pair(directory: Path) -> Iterator[Pair]:
    pair = Pair(directory).connect()
    yield pair
    pair.close()


def test_a_prompt_is_computed_by_the_other_server_and_its_pages_come_as_they_are_computed(pair: Pair) -> None:
    pair.compute(0, 1, pool=pair.here)
    assert pair.find(range(6)) == 6
    request = pair.sent_to_scheduler()
    assert isinstance(request, Generate)
    assert (request.client, request.prompt, request.saved_from) == (PREFILL_CLIENT, PROMPT, 2)
    assert request.sampling.max_tokens == 1
    for number in range(2, 6):
        pair.compute(number)
        pair.until(lambda number=number: pair.peers.received_pages == number - 1)  # type: ignore[misc]
    pair.until(lambda: pair.ready == {1: 6})
    assert pair.contents(1, 6) == list(map(content_of, range(6)))
    pair.fetches.end(1)
    assert pair.has_no_holds()
    assert not pair.peers.is_busy


def test_pages_that_are_stored_there_are_sent_without_a_request(pair: Pair) -> None:
    pair.compute(*range(4))
    assert pair.find(range(4)) == 4
    pair.until(lambda: pair.ready == {1: 4})
    assert pair.contents(1, 4) == list(map(content_of, range(4)))
    assert pair.scheduler.receive(0) is None


def test_no_more_pages_are_under_way_than_the_decode_server_takes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_server, "MAX_PAGES", 2)
    pair.peers._ahead = 4
    pair.compute(*range(12))
    assert pair.find(range(12)) == 12
    server = pair.server
    assert server is not None
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        server.advance(pair.to_scheduler)
    assert server.sent_pages == 4
    pair.until(lambda: pair.ready == {1: 12})


def test_what_was_evicted_before_it_was_sent_is_computed_by_the_decode_server(pair: Pair) -> None:
    pair.find(range(4))
    request = pair.sent_to_scheduler()
    assert isinstance(request, Generate)
    pair.compute(0, 1, 3)
    pair.until(lambda: pair.peers.received_pages == 2)
    assert not pair.ready
    pair.end_request(request)
    pair.until(lambda: pair.ready == {1: 2})
    assert pair.server is not None and not pair.server.is_busy


@pytest.mark.parametrize("starts", [False, True], ids=["refused", "error"])
def test_the_reason_of_a_failure_is_logged_and_the_prompt_computed(
    pair: Pair, starts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pair.find(range(4))
    request = pair.sent_to_scheduler()
    assert isinstance(request, Generate) and pair.server is not None
    if starts:
        error = ReplyError("the prompt is too long")
        pair.server.note(Outputs([Output(request.request, finish="error", error=error)]))
    else:
        pair.server.note(Refused(request.request, 400, "the prompt is too long"))
    pair.until(lambda: pair.ready == {1: 0})
    assert "computes no prompt: the prompt is too long" in caplog.text


def test_a_server_with_another_model_refuses(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(directory, model=b"n" * 32).connect()
    pair.compute(*range(4))
    pair.find(range(4))
    pair.until(lambda: pair.ready == {1: 0})
    assert "is another" in caplog.text
    pair.close()


def test_without_a_connection_nothing_is_promised(directory: Path) -> None:
    pair = Pair(directory)
    pair.kill_server()
    assert pair.find(range(4)) == 0
    pair.close()


def test_when_the_server_dies_the_fetch_has_what_came_and_after_its_return_it_is_asked_again(
    pair: Pair,
) -> None:
    pair.compute(0, 1)
    pair.find(range(4))
    pair.until(lambda: pair.peers.received_pages == 2)
    pair.kill_server()
    pair.until(lambda: pair.ready == {1: 2})
    pair.fetches.end(1)
    assert pair.has_no_holds()
    assert pair.find(range(4), fetch=2) == 2  # those that came
    pair.start_server()
    pair.connect()
    pair.compute(2, 3)
    assert pair.find(range(4), fetch=3) == 4
    pair.until(lambda: pair.ready.get(3) == 4)


def test_a_server_that_does_not_answer_is_not_asked_for_a_while(pair: Pair, clock: Clock) -> None:
    pair.find(range(4))
    hung, pair.server = pair.server, None
    clock.pass_seconds(prefill_peers.ANSWER_S + 1)
    pair.advance()
    assert pair.ready == {1: 0}
    assert pair.find(range(4), fetch=2) == 0
    pair.server = hung
    clock.pass_seconds(prefill_peers.SILENCE_S)
    assert pair.find(range(4), fetch=3) == 4


def test_a_prompt_that_is_late_is_computed_here_and_not_there(pair: Pair, clock: Clock) -> None:
    pair.find(range(4))
    request = pair.sent_to_scheduler()
    pair.compute(0)
    pair.until(lambda: pair.peers.received_pages == 1)
    clock.pass_seconds(prefill_peers.PROGRESS_S + 1)
    pair.advance()
    assert pair.ready == {1: 1}
    assert isinstance(request, Generate)
    assert pair.sent_to_scheduler() == Abort(request.request)
    assert pair.find(range(4), fetch=2) == 4  # it is asked again


def test_the_end_of_a_fetch_ends_the_request_there(pair: Pair) -> None:
    pair.find(range(4))
    request = pair.sent_to_scheduler()
    pair.compute(0)
    pair.until(lambda: pair.peers.received_pages == 1)
    pair.fetches.end(1)
    assert isinstance(request, Generate)
    assert pair.sent_to_scheduler() == Abort(request.request)
    assert pair.has_no_holds()
    assert pair.server is not None and not pair.server.is_busy


def test_pages_that_do_not_fit_into_host_memory_are_computed(directory: Path) -> None:
    pair = Pair(directory, places=3).connect()
    pair.compute(*range(6))
    pair.find(range(6))
    pair.until(lambda: pair.ready == {1: 3})
    assert pair.contents(1, 3) == list(map(content_of, range(3)))
    pair.close()


def test_a_decode_server_that_vanished_is_forgotten(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.find(range(4))
    request = pair.sent_to_scheduler()
    assert isinstance(request, Generate) and pair.server is not None
    pair.end_request(request)
    monkeypatch.setattr(prefill_server, "ABANDONED_S", 0.0)
    pair.server._orders.copy().popitem()[1].taken = 0
    pair.until(lambda: pair.server is not None and not pair.server.is_busy)


def test_what_is_no_message_is_dropped(pair: Pair) -> None:
    stranger = pair.context.socket(zmq.DEALER)
    stranger.connect(pair.address)
    for frames in ([b"\xff"], [b""], [b"\x93\xa8AskPages\x01"], [b"\x91\x01", b"x"]):
        stranger.send_multipart(frames)
    pair.compute(0)
    for _ in range(50):
        pair.advance()
        time.sleep(0.002)
    assert pair.find(range(1)) == 1
    pair.until(lambda: pair.ready == {1: 1})


def test_an_address_that_is_taken_is_refused(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="--prefill-at ipc:///no/such/directory"):
        PrefillServer(pair.context, "ipc:///no/such/directory/p", MODEL, pair.there)


@given(st.data())
@settings(max_examples=30)
def test_whatever_happens_a_fetch_ends_with_right_pages_and_nothing_stays_held(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory), places=data.draw(st.sampled_from([4, 12, 64]))).connect()
        pair.peers._ahead = data.draw(st.integers(1, 4))
        asked: dict[int, range] = {}
        requests: list[Generate] = []
        actions = st.sampled_from(["find", "compute", "evict", "advance", "end", "finish", "kill", "start"])
        for step, action in enumerate(data.draw(st.lists(actions, min_size=4, max_size=40))):
            if action == "find":
                numbers = range(data.draw(st.integers(1, 16)))
                if pair.find(numbers, fetch=step):
                    asked[step] = numbers
            elif action == "compute":
                pair.compute(*range(data.draw(st.integers(1, 16))))
            elif action == "evict":
                pair.there.discard([key_bytes([data.draw(st.integers(0, 15))])])
            elif action == "end" and asked:
                fetch = data.draw(st.sampled_from(sorted(asked)))
                del asked[fetch]
                pair.ready.pop(fetch, None)
                pair.fetches.end(fetch)
            elif action == "kill" and pair.server is not None:
                pair.kill_server()
            elif action == "start" and pair.server is None:
                pair.start_server()
            elif action == "finish" and requests and pair.server is not None:
                pair.end_request(requests.pop())
            pair.advance()
            requests += [each for each in pair.scheduler.waiting() if isinstance(each, Generate)]
        if pair.server is not None:
            pair.kill_server()
        pair.until(lambda: asked.keys() <= pair.ready.keys())
        for fetch in asked:
            count = pair.ready[fetch]
            assert pair.contents(fetch, count) == list(map(content_of, range(count)))
            pair.fetches.end(fetch)
        assert pair.has_no_holds()
        assert not pair.peers.is_busy
        assert all(peer.awaited == 0 for peer in pair.peers._peers)
        pair.close()


def test_other_users_of_the_machine_can_not_connect_to_a_file_and_ipv6_is_an_address_too(pair: Pair) -> None:
    assert Path(pair.address.removeprefix("ipc://")).stat().st_mode & 0o077 == 0
    assert pair.server is not None
    assert pair.server.socket.getsockopt(zmq.IPV6) == 1
