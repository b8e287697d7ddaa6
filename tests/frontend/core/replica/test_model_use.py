"""A tokenizer process's use of a model: what the supervisor is told, and what requests learn."""

from __future__ import annotations

import time
from collections import deque

import pytest
from arbora.frontend.core.replica import model_use
from arbora.frontend.core.replica.model_use import ModelHold, ModelUse
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import LeaveModel, LoadState, Message, ModelState, UseModel
from hypothesis import example, given, settings
from hypothesis import strategies as st

USE = UseModel(0, 1)


@pytest.fixture
def sent() -> list[Message]:
    return []


@pytest.fixture
def use(sent: list[Message]) -> ModelUse:
    return ModelUse(0, 1, 300.0, sent.append)


def test_only_the_first_and_the_last_request_are_told(use: ModelUse, sent: list[Message]) -> None:
    first, second = use.hold(), use.hold()
    first.end()
    first.end()
    assert sent == [USE]
    second.keep_alive = 10.0
    second.end()
    assert sent == [USE, LeaveModel(0, 1, 10.0)]


def test_a_request_without_a_time_has_that_of_the_server(use: ModelUse, sent: list[Message]) -> None:
    first = use.hold()
    first.keep_alive = None
    first.end()
    use.hold().end()
    assert sent == [USE, LeaveModel(0, 1, None), USE, LeaveModel(0, 1, 300.0)]


def test_a_model_in_use_expires_later(use: ModelUse) -> None:
    use.take(ModelState("loaded", expires_at=5.0))
    assert use.expires_at == 5.0
    use.hold()
    assert use.expires_at is not None and use.expires_at > time.time() + 299


def test_requests_get_the_error_of_a_failed_load_until_another_one_is_tried(
    use: ModelUse, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    use.hold()
    assert use.state == "loading"
    use.take(ModelState("unloaded", error="no room"))
    waits = use.hold()
    assert sent == [USE], "the load is not tried again at once"
    with pytest.raises(RequestError, match="The model could not be loaded: no room") as refused:
        use.check()
    assert (refused.value.status, refused.value.code) == (503, "model_not_loaded")
    waits.end()
    monkeypatch.setattr(model_use, "RETRY_SECONDS", 0.0)
    use.hold()
    use.check()
    assert sent == [USE, USE]
    assert use.state == "loading"


def test_a_repeated_error_does_not_put_off_the_next_load(
    use: ModelUse, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    use.hold().end()
    failed = ModelState("unloaded", error="no room")
    use.take(failed)
    now[0] += model_use.RETRY_SECONDS - 1
    use.take(failed)
    now[0] += 2
    sent.clear()
    use.hold()
    assert sent == [USE]


def test_a_model_that_ends_while_a_request_comes_is_loaded_again(use: ModelUse) -> None:
    use.take(ModelState("loaded"))
    use.hold()
    use.take(ModelState("unloaded"))
    assert use.state == "loading", "the supervisor has the request's message"
    use.check()


def test_a_model_is_unloaded_by_hand_only_if_unused(use: ModelUse, sent: list[Message]) -> None:
    use.unload_if_idle()
    assert sent == [LeaveModel(0, 1, 0.0)]
    use.hold()
    use.unload_if_idle()
    assert sent == [LeaveModel(0, 1, 0.0), USE]


class Supervised:
    """Uses of one model in several processes, with a supervisor that loads it while a process needs it. All
    messages wait until the test delivers them."""

    def __init__(self, processes: int) -> None:
        self.told: list[deque[ModelState]] = [deque() for _ in range(processes)]
        self.sent = deque[Message]()
        self.uses = [ModelUse(client, 1, 0.0, self.sent.append) for client in range(processes)]
        self.holds: list[list[ModelHold]] = [[] for _ in range(processes)]
        self.failed: list[list[ModelHold]] = [[] for _ in range(processes)]
        """of requests that have got an error, but have not ended"""
        self.users = set[int]()
        self.state: LoadState = "unloaded"
        self.is_needed = False
        self.error = ""

    def set_state(self, state: LoadState, error: str = "") -> None:
        self.state, self.error = state, error
        self.tell()

    def tell(self) -> None:
        for told in self.told:
            told.append(ModelState(self.state, None, self.error))

    def receive(self) -> None:
        """The supervisor's next message."""
        if not self.sent:
            return
        match self.sent.popleft():
            case UseModel(client):
                self.users.add(client)
                self.is_needed = True
            case LeaveModel(client):
                self.users.discard(client)
                if not self.users:
                    self.tell()

    def take(self, process: int) -> None:
        """A process's next message."""
        if self.told[process] and self.uses[process].take(self.told[process].popleft()) is not None:
            self.fail(process)

    def hold(self, process: int) -> None:
        """A request comes to the process."""
        self.holds[process].append(self.uses[process].hold())
        try:
            self.uses[process].check()
        except RequestError:
            self.fail(process)

    def fail(self, process: int) -> None:
        """All requests of the process that wait get an error."""
        self.failed[process] += self.holds[process]
        self.holds[process].clear()

    def end(self, process: int) -> None:
        """A request of the process ends."""
        if holds := self.failed[process] or self.holds[process]:
            holds.pop().end()

    def work(self, fails: bool) -> None:
        """The supervisor's next act with the model."""
        if self.state == "unloaded" and self.is_needed:
            self.set_state("loading")
        elif self.state == "loading":
            self.is_needed = not fails
            self.set_state("unloaded", "no room") if fails else self.set_state("loaded")
        elif self.state == "loaded" and not self.users:
            self.is_needed = False
            self.set_state("unloaded")

    def settle(self) -> None:
        """Delivers everything, ends the requests with errors, and loads the model if it is needed."""
        for _ in range(10):
            while self.sent or any(self.told) or any(self.failed):
                self.receive()
                for process in range(len(self.uses)):
                    self.take(process)
                    if self.failed[process]:
                        self.end(process)
            self.work(fails=False)


REPEATED_STATE = "hold receive load fail take take end hold receive take hold"
"""A request comes after a failed load, and another one once the supervisor has told its state again."""
ACTS = st.lists(
    st.tuples(st.sampled_from(["hold", "end", "receive", "take", "load", "fail"]), st.integers(0, 1)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(ACTS)
@example([(act, 0) for act in REPEATED_STATE.split()])
def test_each_request_ends_with_a_loaded_model_or_an_error_in_any_order_of_messages(
    acts: list[tuple[str, int]],
) -> None:
    world = Supervised(2)
    for act, process in acts:
        match act:
            case "hold":
                world.hold(process)
            case "end":
                world.end(process)
            case "receive":
                world.receive()
            case "take":
                world.take(process)
            case "load" | "fail":
                world.work(fails=act == "fail")
    world.settle()
    waiting = [process for process, holds in enumerate(world.holds) if holds]
    assert world.users == set(waiting)
    assert world.state == ("loaded" if waiting else "unloaded")
    assert all(use.state == world.state for use in world.uses)
