"""Answers of a process that read a hostile grammar can't run code in the reading process."""

from __future__ import annotations

import io
import os
import pickle

import pytest
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.processes.framing import LENGTH, read_frame
from arbora.grammars.service.answers import MAX_ANSWER, read_answer
from arbora.grammars.service.worker import main
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
    with pytest.raises(ValueError, match="bytes, of which the most are"):
        read_frame(io.BytesIO(LENGTH.pack(MAX_ANSWER + 1)), MAX_ANSWER)
