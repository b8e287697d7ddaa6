"""The pieces of a reply become content blocks, in a stream and as a whole."""

from __future__ import annotations

import json
from typing import Any

from arbora.frontend.api.anthropic.answers import MessageContext, MessageStream
from arbora.frontend.api.anthropic.thinking import Shown
from arbora.frontend.core.parts import Piece
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.core.reply import ChoiceReply, Reply
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.runtime.config import BUILTIN_MODEL
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from msgspec import UNSET

THOUGHT, TEXT = Piece(0, "", (), None, "Hm."), Piece(0, "a", (), None)


def reply_of(*pieces: Piece) -> Reply:
    tokenizer = Tokenizer.load(BUILTIN_MODEL)
    choice = ChoiceReply(Detokenizer(tokenizer), False, ())
    for piece in pieces:
        choice.parts.add(piece)
    request = Generate("a-0", 0, b"1234", SamplingParams(max_tokens=9))
    return Reply([choice], Generation([request]), 1)


def context_of(shown: Shown) -> MessageContext:
    return MessageContext(
        id="msg_0",
        model="model",
        context_left=None,
        page_tokens=16,
        shown=shown,
        counts_thinking=False,
        context_management=UNSET,
        diagnostics=UNSET,
    )


def streamed(*pieces: Piece, shown: Shown = "summarized") -> list[dict[str, Any]]:
    """The blocks that the events of a stream add up to."""
    stream = MessageStream(context_of(shown), reply_of())
    data = b"".join([*(stream.push(piece) for piece in pieces), stream.end()])
    lines = [line for line in data.split(b"\n") if line.startswith(b"data: ")]
    blocks: list[dict[str, Any]] = []
    for event in (json.loads(line[6:]) for line in lines):
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    blocks[-1][name] = blocks[-1].get(name, "") + delta[name]
    return blocks


def whole(*pieces: Piece, shown: Shown = "summarized") -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = json.loads(context_of(shown).body(reply_of(*pieces)))["content"]
    return blocks


def test_thinking_ends_with_its_signature() -> None:
    (block,) = whole(THOUGHT)
    assert (block["type"], block["thinking"]) == ("thinking", "Hm.") and block["signature"]
    assert streamed(THOUGHT) == [block]


def test_omitted_thinking_is_an_empty_block_with_a_signature() -> None:
    (block,) = whole(THOUGHT, shown="omitted")
    assert block["thinking"] == "" and block["signature"]
    assert streamed(THOUGHT, shown="omitted") == [block]


def test_hidden_thinking_is_no_block() -> None:
    assert whole(THOUGHT, TEXT, shown="hidden") == [{"type": "text", "text": "a"}]
    assert streamed(THOUGHT, TEXT, shown="hidden") == [{"type": "text", "text": "a"}]
