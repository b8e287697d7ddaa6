"""Answers of a process that read a hostile grammar can't run code in the reading process."""

from __future__ import annotations

import os
import pickle
import socket

import pytest
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.processes.channel import Channel, ChannelClosedError
from arbora.grammars.processes.framing import LENGTH
from arbora.grammars.service.answers import MAX_ANSWER, read_answer
from arbora.grammars.service.builder_process import main
from arbora.grammars.tags.linking import AmbiguousError


class Gadget:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("false",)


@pytest.mark.parametrize(
    "value", [Gadget(), [Gadget()], {"a": Gadget()}, eval, os.system, main], ids=range(6)
)
def test_an_answer_names_only_automata_and_errors(value: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="which no answer needs"):
        read_answer(pickle.dumps(value))


def test_errors_texts_and_numbers_are_read() -> None:
    for value in ("start: /a/", -9):
        assert read_answer(pickle.dumps(value)) == value
    ambiguous = read_answer(pickle.dumps(AmbiguousError("two readings")))
    assert isinstance(ambiguous, AmbiguousError)
    error = read_answer(pickle.dumps(NotCoveredError("not", "#/not", "it has no automaton")))
    assert isinstance(error, NotCoveredError) and error.keyword == "not"


def test_a_frame_of_an_absurd_length_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(LENGTH.pack(MAX_ANSWER + 1))
        channel = Channel(ours, MAX_ANSWER)
        with pytest.raises(ChannelClosedError):
            channel.receive(60.0)
        assert channel.is_closed
