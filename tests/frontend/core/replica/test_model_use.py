"""A tokenizer process's use of a model: what the supervisor is told, and what requests learn."""

from __future__ import annotations

import time

import pytest
from arbora.frontend.core.replica import model_use
from arbora.frontend.core.replica.model_use import ModelUse
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import LeaveModel, Message, ModelState, UseModel

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
    monkeypatch.setattr(model_use.time, "monotonic", lambda: now[0])
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
