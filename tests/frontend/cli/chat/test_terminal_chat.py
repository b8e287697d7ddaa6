"""`arbora chat` on a terminal: editing, history, commands, and Ctrl-C."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from arbora.frontend.cli.chat import markdown_stream
from arbora.frontend.cli.chat.markdown_stream import MarkdownStream, complete_blocks
from arbora.frontend.cli.chat.talk import Turn
from arbora.frontend.cli.chat.terminal import turn_in_words
from arbora.frontend.language.api_client import Usage
from chat_stub import Piece, chat_server
from rich.console import Console
from terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, TAB, UP, Terminal, terminal

ENDED: Piece = {"delta": {}, "finish_reason": "stop"}
LONG: list[Piece] = [{"delta": {"content": f"word{number} "}} for number in range(400)]


def say(chat: Terminal, keys: str, answer: str = "first after") -> None:
    """Types at the prompt and waits for the answer; without one for the figures that follow a reply."""
    chat.wait_for(">")
    chat.type(keys)
    chat.wait_for(answer)


def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    with (
        chat_server(
            ["**Hello**", " you", ENDED], ["Two lines", ENDED], ["Three", ENDED], ["Four", ENDED]
        ) as stub,
        terminal(["chat", "--url", stub.url, "--system", "be brief"], XDG_STATE_HOME=tmp_path) as chat,
    ):
        chat.wait_for("/help lists commands")
        say(chat, "hi" + ENTER)
        say(chat, "one" + ALT_ENTER + "two" + ENTER)
        say(chat, '"""three' + ENTER + "four" + '"""' + ENTER)
        say(chat, "/set temperature 0.2" + ENTER, "temperature 0.2\n")
        say(chat, "/set temprature 1" + ENTER, "Did you mean temperature?")
        say(chat, "/system be kind" + ENTER, "system message: be kind")
        say(chat, f"/save {saved}" + ENTER, "saved in")
        say(chat, "/mod", "show or change the model")  # the menu
        chat.type(TAB)
        chat.wait_for("el")
        chat.type(ENTER)
        chat.wait_for("model: stub")
        say(chat, UP * 6 + ENTER)  # the text before the five commands
        say(chat, "/exit" + ENTER, "/exit")
        assert chat.exit_code() == 0
    asked = [[turn["content"] for turn in request["messages"]] for request in stub.requests]
    assert asked[0] == ["be brief", "hi"]
    assert asked[1][-1] == "one\ntwo"
    assert asked[2][-1] == "three\nfour"
    assert asked[3][0] == "be kind" and asked[3][-1].strip('"') == "three\nfour"
    assert stub.requests[3]["temperature"] == 0.2 and "temperature" not in stub.requests[2]
    assert [turn["content"] for turn in json.loads(saved.read_text())["messages"]][:2] == [
        "hi",
        "**Hello** you",
    ]
    assert (tmp_path / "arbora" / "chat_history").stat().st_mode & 0o777 == 0o600


def test_ctrl_c_ends_a_reply_and_the_conversation_goes_on(tmp_path: Path) -> None:
    with (
        chat_server(LONG, ["Fine", ENDED], delay_s=0.02) as stub,
        terminal(["chat", "--url", stub.url], XDG_STATE_HOME=tmp_path) as chat,
    ):
        say(chat, "count" + ENTER, "word9")
        chat.type(CTRL_C)
        chat.wait_for("interrupted; the conversation keeps what has arrived")
        say(chat, "go on" + ENTER)
        chat.wait_for(">")
        chat.type(CTRL_D)
        assert chat.exit_code() == 0
    kept = stub.requests[1]["messages"][1]
    assert kept["role"] == "assistant" and kept["content"].startswith("word0 word1 ")
    assert "word399" not in kept["content"]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("one", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n```\na\n\nb", "one\n\n"),
        ("```\na\n\nb\n```\n\nend", "```\na\n\nb\n```\n\n"),
    ],
)
def test_a_block_is_complete_at_an_empty_line_outside_of_code(text: str, complete: str) -> None:
    assert text[: complete_blocks(text)] == complete


def test_a_streamed_reply_is_printed_once_as_markdown() -> None:
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with MarkdownStream(console) as shown:
        shown.add("Let me think.", "")
        for piece in ("# Head\n", "\nFirst **bo", "ld** text.\n\n", "- a\n- b\n"):
            shown.add("", piece)
    text = console.export_text()
    assert text.count("Let me think.") == 1 and text.count("First bold text.") == 1
    assert "• a" in text and "**" not in text
    assert text.index("think") < text.index("Head") < text.index("First") < text.index("• b")


JSON_LINES = ["{\n", '  "na', 'me": "_Ada_ *L* <b>",\n  "tags": [\n', '    "\\\\a", ', '"b"\n  ]\n', "}"]


def test_a_reply_that_matches_a_schema_keeps_its_lines_indentation_and_characters() -> None:
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with MarkdownStream(console, is_markdown=False) as shown:
        shown.add("Let me think.", "")
        for piece in JSON_LINES:
            shown.add("", piece)
    assert console.export_text() == "Let me think.\n\n" + "".join(JSON_LINES) + "\n"


def test_a_long_line_of_json_is_wrapped_by_the_terminal_alone() -> None:
    line = json.dumps({"text": "some words " * 40})
    screen = io.StringIO()
    with MarkdownStream(Console(width=60, file=screen), is_markdown=False) as shown:
        for start in range(0, len(line), 7):
            shown.add("", line[start : start + 7])
    assert screen.getvalue().strip() == line


def test_a_schema_on_a_terminal_shows_json_as_the_model_writes_it(tmp_path: Path) -> None:
    with (
        chat_server(["{", ENDED], [*JSON_LINES, ENDED], ["**Bold**", ENDED]) as stub,
        terminal(["chat", "--url", stub.url], XDG_STATE_HOME=tmp_path) as chat,
    ):
        chat.wait_for("/help lists commands")
        say(chat, '/schema {"type": "object"}' + ENTER, "replies match")
        chat.wait_for(">")
        chat.type("go" + ENTER)
        shown = chat.wait_for("first after")
        assert '\n{\n  "name": "_Ada_ *L* <b>",\n  "tags": [\n    "\\\\a", "b"\n  ]\n' in shown
        say(chat, "/schema off" + ENTER, "replies have no schema")
        chat.wait_for(">")
        chat.type("go" + ENTER)
        assert "**" not in chat.wait_for("first after")


def test_the_end_of_a_paragraph_longer_than_the_terminal_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown_stream, "REDRAW_S", 0.0)
    screen = io.StringIO()
    with MarkdownStream(Console(width=60, height=10, file=screen, force_terminal=True)) as shown:
        for number in range(300):
            shown.add("", f"word{number} ")
        drawn = screen.getvalue()
    assert "word299" in drawn


def test_keys_typed_during_a_reply_are_not_shown_and_the_next_prompt_gets_them(tmp_path: Path) -> None:
    with (
        chat_server([*LONG[:60], ENDED], ["Fine", ENDED], delay_s=0.02) as stub,
        terminal(["chat", "--url", stub.url], XDG_STATE_HOME=tmp_path) as chat,
    ):
        say(chat, "count" + ENTER, "word9")
        chat.type("typed ahead" + ENTER)
        assert "typed ahead" not in chat.wait_for("first after")
        chat.wait_for("first after")
        say(chat, "/exit" + ENTER, "/exit")
        assert chat.exit_code() == 0
    assert stub.requests[1]["messages"][-1]["content"] == "typed ahead"


def test_a_streamed_reply_sends_the_terminal_no_control_characters() -> None:
    screen = io.StringIO()
    with MarkdownStream(Console(width=60, file=screen)) as shown:
        shown.add("Hm\x1b]52;c;aGk=\x07.", "")
        for piece in ("First\x1b", "[2J.\n\n", "```\n\ta\x9b2J\n```\n", "\nLast\x1b[2J."):
            shown.add("", piece)
    written = screen.getvalue()
    assert "Hm]52;c;aGk=." in written and "First[2J." in written and "Last[2J." in written
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", written)


@pytest.mark.parametrize(("seconds", "has_speed"), [(3.0, True), (1.001, False)])
def test_the_speed_is_not_said_of_a_reply_that_arrives_at_once(seconds: float, has_speed: bool) -> None:
    turn = Turn(
        reply="a b c",
        reasoning="",
        finish_reason="stop",
        usage=Usage(10, 5, 3),
        first_token_s=1.0,
        seconds=seconds,
        explanation=None,
    )
    said = turn_in_words(turn)
    assert said.startswith("10 prompt tokens, 50% cached · 3 in the reply · first after 1.00 s")
    assert ("then 1 tokens/s" in said) == has_speed
