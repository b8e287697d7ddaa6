"""Measures what each HTTP API costs the tokenizer process: events of a stream, and requests of many turns.

A figure is the best of many short runs; the APIs take turns. The first table has the time to write one token
of a stream as its event, and the event's size. The second has the time from a body of JSON to the messages
that the chat template gets, for a loop of tools with that many turns.
Run: PYTHONSAFEPATH=1 python bench/api_events.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from arbora.frontend.api.anthropic.answers import MessageContext, MessageStream
from arbora.frontend.api.anthropic.conversation import (
    conversation_of as anthropic_conversation,
)
from arbora.frontend.api.anthropic.protocol import MessagesRequest
from arbora.frontend.api.openai.chat import conversation_of as openai_conversation
from arbora.frontend.api.openai.chat_answers import ChatContext, ChatStream
from arbora.frontend.api.openai.chunks import ChunkWriter, Head
from arbora.frontend.api.openai.protocol import ChatRequest
from arbora.frontend.core.attempts import StreamedAnswer
from arbora.frontend.core.conversation import template_messages
from arbora.frontend.core.parts import Piece
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.core.reply import ChoiceReply, Reply
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from msgspec import UNSET

BUILTIN = Path(__file__).parents[1] / "runtime/model/builtin"
TOKEN = Piece(0, " token", (), None)
EVENTS = 1000  # in a run
RUNS = 30
TURNS = (1, 10, 100)
RESULT = "a line of a file\n" * 40
ARGUMENTS = {"file_path": "/a/b.py", "offset": 1}
_chat = msgspec.json.Decoder(ChatRequest)
_messages = msgspec.json.Decoder(MessagesRequest)


def new_reply(tokenizer: Tokenizer) -> Reply:
    request = Generate("a-0", 0, bytes(4 * 100), SamplingParams(max_tokens=EVENTS))
    choice = ChoiceReply(Detokenizer(tokenizer), False, tokenizer.eos_tokens)
    return Reply([choice], Generation([request]), 1)


def chat_stream(tokenizer: Tokenizer) -> StreamedAnswer:
    head = Head("chatcmpl-" + "0" * 32, 0, "model", "fp_0123456789ab")
    context = ChatContext(
        head=head,
        tokenizer=tokenizer,
        prompt=b"",
        call_finish_reason="tool_calls",
        wants_logprobs=False,
        wants_prompt_logprobs=False,
        counts_reasoning=False,
        counts_prediction=False,
        shows_reasoning=True,
        reasoning_field="reasoning_content",
    )
    reply = new_reply(tokenizer)
    writer = ChunkWriter("chat.completion.chunk", head, None)
    return StreamedAnswer(reply, ChatStream(context, reply, writer))


def message_stream(tokenizer: Tokenizer) -> StreamedAnswer:
    context = MessageContext(
        id="msg_" + "0" * 24,
        model="model",
        context_left=None,
        page_tokens=16,
        shown="summarized",
        counts_thinking=False,
        context_management=UNSET,
        diagnostics=UNSET,
    )
    reply = new_reply(tokenizer)
    return StreamedAnswer(reply, MessageStream(context, reply))


def chat_body(turns: int) -> bytes:
    function = {"name": "Read", "arguments": json.dumps(ARGUMENTS)}
    messages: list[Any] = [{"role": "user", "content": "Look."}]
    for turn in range(turns):
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": RESULT})
    return msgspec.json.encode({"model": "model", "messages": messages})


def messages_body(turns: int) -> bytes:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Look."}]}]
    for turn in range(turns):
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Read", "input": ARGUMENTS}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": RESULT}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]})
        messages.append({"role": "user", "content": [result]})
    return msgspec.json.encode({"model": "model", "max_tokens": 9, "messages": messages})


def read_chat(body: bytes) -> None:
    template_messages(openai_conversation(_chat.decode(body)).messages)


def read_messages(body: bytes) -> None:
    template_messages(anthropic_conversation(_messages.decode(body)).messages)


def best_of(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of the fastest run of each work; the works take turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(RUNS):
        for name, work in works.items():
            start = time.perf_counter_ns()
            work()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / 1000)
    return best


def write_events(stream: StreamedAnswer) -> None:
    for _ in range(EVENTS):
        stream.take([TOKEN])


def print_events(tokenizer: Tokenizer) -> None:
    streams: dict[str, StreamedAnswer] = {
        "openai": chat_stream(tokenizer),
        "anthropic": message_stream(tokenizer),
    }
    for stream in streams.values():
        stream.take([TOKEN])

    times = best_of({name: partial(write_events, stream) for name, stream in streams.items()})
    print(f"{'api':<12}{'event µs':>10}{'bytes':>8}{'tokens/s':>12}")
    for name, stream in streams.items():
        micros = times[name] / EVENTS
        print(f"{name:<12}{micros:>10.2f}{len(stream.take([TOKEN])):>8}{1e6 / micros:>12,.0f}")


def print_requests() -> None:
    print(f"\n{'turns':<8}{'openai µs':>12}{'anthropic µs':>14}{'KiB':>8}")
    for turns in TURNS:
        chat, messages = chat_body(turns), messages_body(turns)
        times = best_of({"openai": partial(read_chat, chat), "anthropic": partial(read_messages, messages)})
        size = len(messages) / 1024
        print(f"{turns:<8}{times['openai']:>12.0f}{times['anthropic']:>14.0f}{size:>8.0f}")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print_events(Tokenizer.load(BUILTIN))
    print_requests()


if __name__ == "__main__":
    main()
