"""`arbora chat --json` with a real server: a line for each turn, with tokens and the cached share."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from arbora.frontend.cli.chat.server import Server
from arbora.frontend.cli.main import main
from arbora.frontend.language.api_client import Piece
from chat_stub import chat_server
from served import Served


def chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, *lines: str
) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["chat", "--url", url, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_turn_is_a_line_with_its_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: Served
) -> None:
    long = "Tell me about " + "the sea and " * 30
    code, lines = chat(
        monkeypatch, capsys, served.url, "/set max_tokens 5", "/set temperature 0", long, "And?", "/cache"
    )
    assert code == 0
    first, second = lines[2], lines[3]
    assert (first["turn"], first["user"], second["turn"]) == (1, long.strip(), 2)
    assert first["usage"]["completion_tokens"] <= 5 and first["finish_reason"] in ("stop", "length")
    assert second["usage"]["cached_tokens"] > first["usage"]["prompt_tokens"] // 2
    explained = second["cache_explanation"]
    assert explained["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert (
        f"{explained['matched_tokens']} of {explained['prompt_tokens']} prompt tokens" in lines[4]["answer"]
    )


def test_a_failed_turn_is_an_error_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"message": "the context is full", "code": "context_length_exceeded"}
    with chat_server(full, ["one", {"delta": {}, "finish_reason": "stop"}]) as stub:
        code, lines = chat(monkeypatch, capsys, stub.url, "long", "/nothing", "short", "/exit", "never sent")
    assert code == 1
    assert lines[0]["error"] == {"message": "status 400: the context is full", "code": full["code"]}
    assert "there is no /nothing" in lines[1]["error"]["message"]
    assert lines[2]["reply"] == "one" and len(lines) == 3
    assert [turn["content"] for turn in stub.requests[1]["messages"]] == ["short"]


def test_a_line_that_is_not_utf8_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["one", {"delta": {}, "finish_reason": "stop"}]) as stub:
        code, lines = chat(monkeypatch, capsys, stub.url, "/system \udcff", "hi")
    assert code == 1 and lines[1]["reply"] == "one"
    assert "not UTF-8" in lines[0]["error"]["message"] and "udcff" in lines[0]["error"]["message"]


def test_ctrl_c_ends_the_chat_after_the_line_of_the_interrupted_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[Piece]:
        raise KeyboardInterrupt
        yield Piece()

    monkeypatch.setattr(Server, "reply", interrupted)
    with chat_server(owner="arbora") as stub:
        code, lines = chat(monkeypatch, capsys, stub.url, "/set temperature 0", "never sent")
    assert code == 130
    assert [line["error"]["message"] for line in lines] == [
        "/set temperature 0: interrupted, so nothing is changed."
    ]


def test_ctrl_c_ends_the_chat_after_the_line_of_the_interrupted_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[Piece]:
        yield Piece(text="Once")
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "reply", interrupted)
    with chat_server() as stub:
        code, lines = chat(monkeypatch, capsys, stub.url, "a story", "never sent")
    assert code == 130
    assert [(line["reply"], line["finish_reason"]) for line in lines] == [("Once", "interrupted")]
