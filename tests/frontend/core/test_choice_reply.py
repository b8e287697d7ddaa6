"""A choice grows by the outputs of its steps: one token at a time, or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arbora.frontend.core.reply import ChoiceReply
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.reply_parser import ReplyParser, ToolReading
from arbora.runtime.messages import FinishReason, Output, Tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import KINDS, tokenizer_of_kind


def packed(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, "<i4").tobytes()


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_reply_is_the_same_however_its_tokens_arrive(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of_kind(kind)
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=12))
    stop = data.draw(st.sampled_from([(), ("never found",)]))
    skip, continues = data.draw(st.booleans()), data.draw(st.booleans())
    remembered: list[tuple[str, Tokens]] = []
    detokenizer = Detokenizer(tokenizer, stop, skip_special_tokens=skip, continues_text=continues)
    choice = ChoiceReply(detokenizer, False, (), remember=lambda *reply: remembered.append(reply))
    text, left, first = "", list(tokens), True
    while left:
        count = data.draw(st.sampled_from([1, 1, 1, 2, 3]))
        part, left = left[:count], left[count:]
        finish: FinishReason | None = None if left else "length"
        output = Output("r", packed(part), finish=finish, cached_tokens=5 if first else None)
        assert not (choice.is_quick(output) and (stop or finish))
        piece = choice.push(0, output)
        text, first = text + piece.content, False
        arrived = tokens[: len(tokens) - len(left)]
        assert (piece.finish, choice.completion_tokens) == (finish, len(arrived))
        assert choice.tokens == packed(arrived)
        if not stop:
            assert choice.settled_tokens(0) == packed(arrived)
    assert text == tokenizer.decode(packed(tokens), skip, continues_text=continues)
    assert choice.cached_tokens == 5
    choice.remember()
    assert remembered == [(text, packed(tokens))]


@pytest.mark.parametrize("enforced", [(), ("f",)])
def test_text_after_a_call_in_one_output_stays_after_it(enforced: Sequence[str]) -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    tools = ToolReading(FORMATS["hermes"], lambda call: True, frozenset(enforced), names=("f",))
    choice = ChoiceReply(Detokenizer(tokenizer), False, (), parser=ReplyParser(tools=tools))
    choice.collect()
    for text in ('<tool_call>\n{"name": "f", "arguments": {"a": 1', "}}\n</tool_call>\nHello there"):
        choice.push(0, Output("r", tokenizer.encode(text, add_special_tokens=False)))
    choice.push(0, Output("r", b"", finish="stop"))
    assert [(part.kind, part.text) for part in choice.parts.all] == [
        ("call", '{"a": 1}'),
        ("text", "Hello there"),
    ]
