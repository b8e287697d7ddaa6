"""A chat in the terminal, with a server that is already there."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from arbora.frontend.cli.chat.server import Server
from arbora.frontend.cli.main import main
from chat_stub import Piece, chat_server

ENDED: Piece = {"delta": {}, "finish_reason": "stop"}


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    waiting = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: next(waiting))


def test_a_chat_sends_the_whole_conversation_each_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["Hello", " you", ENDED], ["Fine", ENDED]) as server:
        say(monkeypatch, "hi", "how are you?", "/exit")
        assert main(["chat", "--url", server.url, "--system", "be brief"]) == 0
    assert "Hello you\nFine\n" in capsys.readouterr().out
    assert [(turn["role"], turn["content"]) for turn in server.requests[1]["messages"]] == [
        ("system", "be brief"),
        ("user", "hi"),
        ("assistant", "Hello you"),
        ("user", "how are you?"),
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_chat_shows_the_reasoning_and_sends_only_the_answer_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    opening = {"delta": {"role": "assistant", "content": ""}}
    thoughts = [{"delta": {name: "Let me"}}, {"delta": {name: " see."}}]
    with chat_server([opening, *thoughts, "It is", " fine.", ENDED], ["Yes.", ENDED]) as server:
        say(monkeypatch, "hi", "sure?", "/exit")
        main(["chat", "--url", server.url])
    assert "Let me see.\n\nIt is fine.\nYes.\n" in capsys.readouterr().out
    assert [turn["content"] for turn in server.requests[1]["messages"]] == ["hi", "It is fine.", "sure?"]


def test_a_chat_on_a_terminal_dims_the_reasoning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reply: list[Piece] = [{"delta": {"reasoning_content": "Hm."}}, "Fine.", ENDED]
    for no_color in (False, True):
        monkeypatch.delenv("NO_COLOR", raising=False)
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        with chat_server(reply) as server:
            say(monkeypatch, "hi", "/exit")
            monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
            main(["chat", "--url", server.url])
        said = capsys.readouterr().out
        assert ("Hm.\n\nFine." if no_color else "\x1b[2mHm.\x1b[22m\n\nFine.") in said


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_is_spared_the_control_characters_of_a_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    thought, clears = "Hm\x1b]52;c;aGk=\x07.", "Fi\x1b[2J\x9b2Jne.\r\n\tYes."
    with chat_server([{"delta": {"reasoning": thought}}, clears, ENDED], ["two", ENDED]) as server:
        say(monkeypatch, "hi", "ho", "/exit")
        monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
        main(["chat", "--url", server.url])
    shown = "Hm]52;c;aGk=.\n\nFi[2J2Jne.\n\tYes." if is_terminal else f"{thought}\n\n{clears}"
    assert shown in capsys.readouterr().out
    assert server.requests[1]["messages"][1]["content"] == clears


def test_the_reasoning_is_on_the_screen_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *texts, **_: shown.append("".join(texts)))
    with chat_server([{"delta": {"reasoning_content": text}} for text in ("Hm", "…")]) as server:
        say(monkeypatch, "hi", "/exit")
        main(["chat", "--url", server.url])
    assert [text for text in shown if text][1:3] == ["Hm", "…"]


def test_a_chat_says_that_a_limit_ended_the_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["Once upon", {"delta": {}, "finish_reason": "length"}]) as server:
        say(monkeypatch, "hi", "/exit")
        main(["chat", "--url", server.url])
    assert "Once upon\n(the reply has reached its limit)\n" in capsys.readouterr().out


def test_a_chat_can_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(["one", ENDED], ["two", ENDED]) as server:
        say(monkeypatch, "hi", "/reset", "ho", "/exit")
        main(["chat", "--url", server.url])
    assert [turn["content"] for turn in server.requests[1]["messages"]] == ["ho"]


def test_a_chat_carries_out_commands_and_refuses_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["one", ENDED], ["two", ENDED]) as server:
        say(monkeypatch, "/set temperature 0", "/sett", "//help", "5 / 2", "/exit")
        assert main(["chat", "--url", server.url]) == 1
    said = capsys.readouterr()
    assert "temperature 0.0\n" in said.out
    assert "(there is no /sett. Did you mean /set? /help lists the commands.)" in said.err
    assert [turn["content"] for turn in server.requests[1]["messages"]] == ["/help", "one", "5 / 2"]
    assert server.requests[0]["temperature"] == 0


def test_ctrl_c_between_replies_ends_the_line_and_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    with chat_server() as server:
        monkeypatch.setattr("builtins.input", interrupt)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        assert main(["chat", "--url", server.url]) == 130
    assert capsys.readouterr().out.endswith("/exit ends.\n\n")


def test_a_chat_forgets_a_turn_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server("the model stopped", ["two", ENDED]) as server:
        say(monkeypatch, "hi", "ho", "/exit")
        assert main(["chat", "--url", server.url]) == 1
    said = capsys.readouterr()
    assert "(no reply, and this turn is forgotten: the model stopped.)" in said.err
    assert said.out.endswith("/exit ends.\ntwo\n"), "no empty line for the failed turn, nor at the end"
    assert [turn["content"] for turn in server.requests[1]["messages"]] == ["ho"]


def test_a_chat_forgets_a_turn_that_did_not_fit_and_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"message": "the context is full", "code": "context_length_exceeded"}
    busy = {"message": "the server is busy", "code": "overloaded"}
    with chat_server(["one", ENDED], full, busy, ["two", ENDED]) as server:
        say(monkeypatch, "hi", "a long story", "and", "ho", "/exit")
        main(["chat", "--url", server.url])
    said = capsys.readouterr().err
    assert "forgotten: status 400: the context is full. A shorter one may fit, and /reset begins" in said
    assert said.endswith("(no reply, and this turn is forgotten: status 400: the server is busy.)\n")
    assert [turn["content"] for turn in server.requests[3]["messages"]] == ["hi", "one", "ho"]


def test_a_reply_that_breaks_off_is_no_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["Once upon"], ["two", ENDED]) as server:
        say(monkeypatch, "hi", "ho", "/exit")
        assert main(["chat", "--url", server.url]) == 1
    assert "forgotten: the stream ended without a finish reason.)" in capsys.readouterr().err
    assert [turn["content"] for turn in server.requests[1]["messages"]] == ["ho"]


def test_a_line_that_is_not_utf8_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(["two", ENDED]) as server:
        say(monkeypatch, "\udcff hi", "Zoë", "/exit")
        assert main(["chat", "--url", server.url]) == 1
    assert "(this line is not UTF-8, so it was not sent: '\\udcff hi')" in capsys.readouterr().err
    assert [turn["content"] for turn in server.requests[0]["messages"]] == ["Zoë"]


def test_a_closed_output_ends_the_chat_quietly() -> None:
    with chat_server(["one", ENDED], ["two", ENDED], ["three", ENDED], delay_s=0.1) as server:
        command = f"printf 'a\\nb\\nc\\n' | {sys.executable} -P -m arbora chat --url {server.url} | head -1"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "stub at" in done.stdout and done.stderr == ""


def test_a_chat_without_a_server_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert main(["chat", "--url", f"http://127.0.0.1:{port}"]) == 2
    assert "Start one with `arbora serve`" in capsys.readouterr().err


def test_a_chat_with_a_server_that_speaks_tls_names_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        threads.submit(lambda: listener.accept()[0].close())
        assert main(["chat", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
    assert "closed the connection without a reply. If it uses TLS" in capsys.readouterr().err


def test_a_chat_without_the_key_says_how_to_give_it(capsys: pytest.CaptureFixture[str]) -> None:
    with chat_server() as stub:
        stub.is_guarded = True
        assert main(["chat", "--url", stub.url]) == 2
        asks = (
            f"the server at {stub.url} asks for an API key: give it with --api-key KEY or in ARBORA_API_KEY."
        )
        assert capsys.readouterr().err == f"arbora: error: {asks}\n"
        assert main(["chat", "--url", stub.url, "--api-key", "wrong"]) == 2
    assert "does not know this API key: give another with --api-key KEY" in capsys.readouterr().err


@pytest.mark.parametrize(("is_terminal", "prompt"), [(True, "> "), (False, "")])
def test_a_chat_asks_only_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, prompt: str
) -> None:
    prompts: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal, raising=False)

    def asked(text: str) -> str:
        prompts.append(text)
        return "/exit"

    monkeypatch.setattr("builtins.input", asked)
    with chat_server() as stub:
        main(["chat", "--url", stub.url])
    assert prompts == [prompt]


def test_a_chat_sends_its_key() -> None:
    with chat_server() as stub:
        Server(stub.url + "/v1/", "secret").models()
    assert stub.keys == ["Bearer secret"]


def test_a_chat_takes_the_first_of_the_servers_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARBORA_API_KEY", "one,two")
    with chat_server() as stub:
        say(monkeypatch, "/exit")
        main(["chat", "--url", stub.url])
    assert stub.keys == ["Bearer one"]


def test_a_chat_with_a_model_without_template_ends_before_the_first_turn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with chat_server(owner="arbora", has_template=False) as server:
        assert main(["chat", "--url", server.url]) == 2
    said = capsys.readouterr().err
    assert "has no chat template" in said and "/v1/completions" in said and "--chat-template FILE" in said
