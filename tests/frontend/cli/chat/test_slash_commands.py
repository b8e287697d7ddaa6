"""The slash commands of a chat, and their effect on the next request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.frontend.cli.chat.conversation import CommandError
from arbora.frontend.cli.chat.server import Server
from arbora.frontend.cli.chat.slash_commands import explanation_in_words, run_command
from arbora.frontend.cli.chat.talk import Talk
from chat_stub import ChatStub, Piece, chat_server
from msgspec.structs import replace

ENDED: Piece = {"delta": {}, "finish_reason": "stop"}
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


@pytest.fixture
def stub() -> Iterator[ChatStub]:
    with chat_server(["one", ENDED], ["two", ENDED], owner="arbora") as stub:
        yield stub


@pytest.fixture
def talk(stub: ChatStub) -> Talk:
    server = Server(stub.url, None)
    return Talk(server, server.models(), "be brief")


def test_settings_and_a_schema_are_fields_of_the_request(talk: Talk, stub: ChatStub, tmp_path: Path) -> None:
    schema = tmp_path / "a.json"
    schema.write_text(SCHEMA)
    stub.replies[:0] = [["{", ENDED]] * 4
    run_command(talk, "/set temperature 0.2")
    run_command(talk, "/set stop END")
    run_command(talk, '/set stop ["a", "b"]')
    run_command(talk, f"/schema {schema}")
    talk.say("hi", lambda piece: None)
    run_command(talk, "/set temperature")
    assert run_command(talk, "/schema off") == "replies have no schema"
    talk.say("ho", lambda piece: None)
    *checks, first, second = stub.requests
    assert [check["max_tokens"] for check in checks] == [1] * 4
    assert (checks[0]["temperature"], checks[1]["stop"]) == (0.2, "END")
    assert checks[3]["response_format"] == first["response_format"]
    assert (first["temperature"], first["stop"]) == (0.2, ["a", "b"])
    assert first["response_format"]["json_schema"]["schema"]["properties"] == {"a": {"type": "integer"}}
    assert "temperature" not in second and "response_format" not in second


def test_a_schema_that_the_server_refuses_is_not_taken(talk: Talk, stub: ChatStub) -> None:
    stub.replies = [["{", ENDED], {"message": "'objekt' is not a type."}]
    run_command(talk, f"/schema {SCHEMA}")
    with pytest.raises(
        CommandError,
        match="/schema: the server did not take it, so nothing is changed: status 400: 'objekt' is not",
    ):
        run_command(talk, '/schema {"type": "objekt"}')
    assert run_command(talk, "/schema").startswith('replies match {"type":"object"')


def test_a_setting_that_the_server_refuses_is_not_taken(talk: Talk, stub: ChatStub) -> None:
    stub.replies = [["one", ENDED], {"message": "temperature must be at most 2."}, ["a", "b", "c"]]
    run_command(talk, "/set temperature 1")
    with pytest.raises(
        CommandError,
        match="/set temperature 3: the server did not take it, so nothing is changed: status 400: temp",
    ):
        run_command(talk, "/set temperature 3")
    assert run_command(talk, "/set max_tokens 900") == "temperature 1.0, max_tokens 900"
    assert [check["max_tokens"] for check in stub.requests] == [1, 1, 900]


def test_the_check_of_a_setting_ends_at_the_first_text() -> None:
    with chat_server(["a"] * 200, delay_s=0.01, owner="arbora") as stub:
        server = Server(stub.url, None)
        run_command(Talk(server, server.models(), None), "/set max_tokens 900")
        assert stub.sent < 100


def test_a_server_other_than_arbora_is_not_asked_about_a_setting() -> None:
    with chat_server() as stub:
        server = Server(stub.url, None)
        talk = Talk(server, server.models(), None)
        assert run_command(talk, "/set reasoning_effort low") == "reasoning_effort low"
        assert stub.requests == []


def test_a_schema_whose_check_is_interrupted_is_not_taken(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[Piece]:
        raise KeyboardInterrupt
        yield {}

    monkeypatch.setattr(Server, "reply", interrupted)
    with pytest.raises(CommandError, match="/schema: interrupted, so nothing is changed"):
        run_command(talk, f"/schema {SCHEMA}")
    assert run_command(talk, "/schema") == "replies have no schema"


def test_a_saved_conversation_continues(talk: Talk, stub: ChatStub, tmp_path: Path) -> None:
    stub.replies[1:1] = [["a", ENDED]] * 2
    talk.say("hi", lambda piece: None)
    run_command(talk, "/set seed 5")
    run_command(talk, f"/save '{tmp_path}/my chat.json'")
    run_command(talk, "/reset")
    assert talk.conversation.messages == []
    assert run_command(talk, f"/load '{tmp_path}/my chat.json'") == "2 messages loaded"
    talk.say("ho", lambda piece: None)
    assert [turn["content"] for turn in stub.requests[3]["messages"]] == ["be brief", "hi", "one", "ho"]
    assert stub.requests[3]["seed"] == 5


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (
            {"messages": [{"role": "usr", "content": "hi"}]},
            "Invalid enum value 'usr' - at `$.messages[0].role`",
        ),
        ({"messages": [{"role": "user"}]}, "required field `content` - at `$.messages[0]`"),
        ({"settings": {"temprature": 1}}, "unknown field `temprature`"),
        ({"settings": {"temperature": "hot"}}, "Expected `float`, got `str` - at `$.temperature`"),
        (
            {"settings": {"temperature": 9}},
            "the server did not take it, so nothing is changed: status 400: hot",
        ),
    ],
)
def test_a_conversation_that_no_server_takes_is_not_loaded(
    talk: Talk, stub: ChatStub, tmp_path: Path, saved: dict[str, object], expected: str
) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"model": "stub", **saved}))
    stub.replies = [{"message": "hot"}]
    before = talk.conversation
    with pytest.raises(CommandError) as raised:
        run_command(talk, f"/load {file}")
    assert expected in str(raised.value) and talk.conversation is before


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/sytem x", "there is no /sytem. Did you mean /system?"),
        ("/set heat 1", "there is no setting heat. There are temperature,"),
        ("/set temperature hot", "/set temperature hot: expected a number."),
        ("/set top_k 1.5", "/set top_k 1.5: expected a whole number."),
        ('/set stop ["a",5]', '/set stop ["a",5]: expected a text or a JSON list of texts.'),
        ("/schema [1]", "the file can't be read"),
        ("/schema {", "/schema: expected a JSON schema"),
        ("/model other", "the server has no such model. It has stub."),
        ("/save", "/save needs the name of one file"),
        ("/save /proc/no/file", "the file can't be written (No such file"),
        ("/load /no/file", "/load /no/file: the file can't be read (No such file"),
        ("/load /etc/passwd", "this is no conversation that /save wrote"),
        ("/cache", "say something first"),
    ],
)
def test_a_command_that_fails_says_what_to_write(talk: Talk, command: str, expected: str) -> None:
    with pytest.raises(CommandError) as raised:
        run_command(talk, command)
    assert expected in str(raised.value)


def test_the_model_is_shown_with_the_others_that_could_be_chosen(talk: Talk) -> None:
    assert run_command(talk, "/model") == "model: stub"
    talk.models = [*talk.models, replace(talk.models[0], name="other")]
    assert run_command(talk, "/model") == "model: stub (of stub, other)"


def test_help_lists_every_command(talk: Talk) -> None:
    said = run_command(talk, "/help")
    names = ("/system", "/schema", "/model", "/set", "/cache", "/reset", "/save", "/load", "/exit")
    assert all(name in said for name in names)


def test_an_explanation_names_each_cause_and_the_first_difference() -> None:
    said = explanation_in_words(
        {
            "prompt_tokens": 102,
            "matched_tokens": 14,
            "could_match_tokens": 101,
            "causes": {"new": 1, "volatile": 87},
            "difference": {
                "part": "system",
                "index": 0,
                "token": 14,
                "prompt": "10:32",
                "earlier": "10:31",
                "note": "A line differs only in its time.",
            },
        }
    )
    assert said.splitlines() == [
        "14 of 102 prompt tokens were cached, 101 could have been",
        "      87  volatile: they follow a line that changes with each request",
        "       1  new: no earlier prompt had them",
        "first difference in system 0, at token 14: A line differs only in its time.",
        "  now      10:32",
        "  earlier  10:31",
    ]
