"""When requests are sent again, and the errors of those that are not."""

from __future__ import annotations

import arbora as ab
import pytest
from arbora.frontend.language import http_client
from arbora.frontend.language.state import State
from scripted_http import MODELS, REPLY, Answer, scripted_http

FULL = Answer('{"error": {"message": "full"}}', 429, "0")
BROKEN = Answer("{", breaks=True)
PIECE = 'data: {"choices": [{"text": " y", "finish_reason": null}]}\n\n'
LAST = 'data: {"choices": [{"text": "es", "finish_reason": "stop"}]}\n\n'


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "WAIT_S", 0.01)


@ab.program
def ask(s: State, text: str = "Sure?") -> None:
    s += text + ab.gen("answer")


def answer_of(url: str) -> str:
    return str(ask.run(backend=ab.connect(url))["answer"])


@pytest.mark.parametrize(
    "before", [[FULL] * 30, [FULL._replace(status=503, retry_after=None)] * 3, [BROKEN] * 3], ids=str
)
def test_a_request_is_sent_again_until_the_server_takes_it(before: list[Answer]) -> None:
    with scripted_http(MODELS, *before, REPLY) as url:
        assert answer_of(url) == " yes"


def test_a_server_that_refuses_everything_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PATIENCE_S", 0.1)
    with (
        scripted_http(MODELS, FULL) as url,
        pytest.raises(ab.ProgramError, match=r"status 429: full"),
    ):
        answer_of(url)


def test_a_request_that_breaks_each_connection_is_given_up() -> None:
    with (
        scripted_http(MODELS, BROKEN) as url,
        pytest.raises(ab.ProgramError, match=r"no answer from .*Is the server running"),
    ):
        answer_of(url)


def test_a_server_that_never_answered_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "WAIT_S", 1000.0)
    with pytest.raises(ab.ProgramError, match=r"Is the server running"):
        answer_of("http://127.0.0.1:9")


def test_a_server_that_ended_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "RESTART_S", 0.2)
    with scripted_http(MODELS, REPLY) as url:
        backend = ab.connect(url)
        ask.run(backend=backend)
    with pytest.raises(ab.ProgramError, match=r"Is the server running"):
        ask.run(backend=backend)


def test_a_stream_that_breaks_before_its_first_event_is_sent_again() -> None:
    with scripted_http(MODELS, Answer(":", breaks=True), Answer(PIECE + LAST)) as url:
        parts = list(ask.stream(backend=ab.connect(url)))
    assert [part.text for part in parts] == [" y", "es"]


def test_a_stream_that_breaks_later_is_an_error_after_its_pieces() -> None:
    with scripted_http(MODELS, Answer(PIECE, breaks=True), Answer(PIECE + LAST)) as url:
        parts = iter(ask.stream(backend=ab.connect(url)))
        assert next(parts).text == " y"
        with pytest.raises(ab.ProgramError, match=r"no answer from"):
            next(parts)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (Answer("<html>"), "'<html>', which is no JSON: is this a server"),
        (Answer('{"data": []}'), "serves no model"),
        (Answer("no", 404), "/v1/models was refused with status 404: no"),
    ],
)
def test_a_server_without_the_api_is_named(models: Answer, message: str) -> None:
    with scripted_http(models) as url, pytest.raises(ab.ProgramError, match=message):
        answer_of(url)


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with scripted_http(MODELS, REPLY) as url, pytest.raises(ab.ProgramError, match=r"'\\ud800', half of"):
        ask.run("a \ud800", backend=ab.connect(url))
