"""Messages of a process that read a hostile grammar can't run code in the reading process."""

from __future__ import annotations

import pickle
import socket

import msgspec
import pytest
from arbora.grammars.errors import Fault, GrammarError, NotCoveredError, decode_error, encode_error
from arbora.grammars.processes.channel import LENGTH, Channel, ChannelClosedError
from arbora.grammars.processes.messages import MAX_STATE, Failed, Finished, decode_progress, encode
from arbora.grammars.regex.ecma import RegexError
from arbora.grammars.tags.linker import AmbiguousError


@pytest.mark.parametrize("data", [b"", pickle.dumps(print), encode(["Nope", 1])], ids=range(3))
def test_a_message_of_another_kind_is_not_read(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_progress(data)


def test_an_error_arrives_with_its_keyword_and_path() -> None:
    fault = encode_error(NotCoveredError("not", "#/not", "it has no automaton"))
    sent = decode_progress(encode(Finished(Failed(fault), False)))
    assert isinstance(sent, Finished) and isinstance(sent.outcome, Failed)
    error = decode_error(sent.outcome.fault)
    assert isinstance(error, NotCoveredError) and error.keyword == "not"


@pytest.mark.parametrize("error", [AmbiguousError("two readings"), RegexError("(", "is wrong")])
def test_an_error_of_another_module_arrives_as_one_of_its_base_class(error: GrammarError) -> None:
    arrived = decode_error(encode_error(error))
    assert type(arrived) is GrammarError and str(arrived) == str(error)


@pytest.mark.parametrize("fault", [Fault("eval", ("1",)), Fault("NotCoveredError", ("not",))])
def test_an_unknown_error_is_not_read(fault: Fault) -> None:
    with pytest.raises(ValueError, match="no error of a grammar's"):
        decode_error(fault)


def test_a_frame_of_an_absurd_length_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(LENGTH.pack(MAX_STATE + 1))
        channel = Channel(ours, MAX_STATE)
        with pytest.raises(ChannelClosedError):
            channel.receive(60.0)
        assert channel.is_closed
