"""Bodies that cost a lot for their size are refused, or served, without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from arbora.frontend.api.openai import completion_answers, token_logprobs
from arbora.frontend.api.openai.responses import CompletionLogprobs
from arbora.frontend.core.conversation import MAX_MESSAGES, MAX_TOOLS
from arbora.frontend.core.logprobs import TokenLogprob
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.http.field_names import MAX_UNKNOWN
from arbora.frontend.http.json_limits import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_TEMPLATE_KWARGS_BYTES,
)
from http_world import HttpWorld, eventually, http_world

MAX_STALL_S = 0.2
ATTEMPTS = 4  # the machine may be busy with other work
CHAT, TOKENIZE, DETOKENIZE, COMPLETE = "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/completions"
QUESTION = '"messages":[{"role":"user","content":"Hello"}]'

JSON = {"content-type": "application/json"}
MESSAGE = '{"role":"user","content":"x"}'


BEAT_S = 0.002


class LoopWatch:
    """`longest` is the longest time in seconds between two turns of the loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - BEAT_S)
            last = now


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()
    beating = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        beating.cancel()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1 << 15) as running:
        gc.freeze()  # as the process does when it is ready
        yield running
        gc.unfreeze()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def chat(fields: str) -> str:
    return f"{{{QUESTION},{fields}}}"


def listed(count: int, element: str) -> str:
    return "[" + ",".join([element] * count) + "]"


def said(text: str) -> str:
    return f'{{"messages":[{{"role":"user","content":"{text}"}}]}}'


def prompt(text: str) -> str:
    return f'{{"prompt":"{text}"}}'


def tools(count: int) -> str:
    return "[" + ",".join(f'{{"type":"function","function":{{"name":"f{n}"}}}}' for n in range(count)) + "]"


def tag(levels: int) -> str:
    """A structural tag whose length doubles with each level."""
    if levels == 0:
        return '{"type":"const_string","value":"a"}'
    inner = tag(levels - 1)
    return f'{{"type":"sequence","elements":[{inner},{inner}]}}'


def unknown(count: int) -> str:
    return ",".join(f'"name{n}":1' for n in range(count))


LONG_CHAT = said("Hello you " * 400_000)
REFUSED = {
    "tools by the thousand": (CHAT, chat(f'"tools":{tools(40_000)}'), f"at most {MAX_TOOLS}"),
    "tools that are not used": (CHAT, chat(f'"tool_choice":"none","tools":{tools(40_000)}'), "at most 1024"),
    "tools to tokenize": (TOKENIZE, chat(f'"tools":{tools(40_000)}'), f"at most {MAX_TOOLS}"),
    "messages": (
        CHAT,
        f'{{"messages":{listed(20_000, MESSAGE)}}}',
        f"messages has 20000 messages, but may have at most {MAX_MESSAGES}",
    ),
    "many more messages": (
        CHAT,
        f'{{"messages":{listed(140_000, MESSAGE)}}}',
        "more than 262,144 strings, most of them in messages",
    ),
    "empty lists": (
        CHAT,
        chat(f'"chat_template_kwargs":{{"a":{listed(1_000_000, "[]")}}}'),
        "more than 131,072 lists and objects, most of them in chat_template_kwargs",
    ),
    "template variables": (
        CHAT,
        chat(f'"chat_template_kwargs":{{"a":{listed(30_000, "1,1")}}}'),
        f"bytes of JSON, but may have at most {MAX_TEMPLATE_KWARGS_BYTES}",
    ),
    "a structural tag": (
        CHAT,
        chat(f'"response_format":{{"type":"structural_tag","format":{tag(13)}}}'),
        "more than 4096 formats and tags",
    ),
    "a structural tag's triggers": (
        CHAT,
        chat(
            '"response_format":{"type":"structural_tag","structures":[{"begin":"a","schema":{},"end":"b"}],'
            f'"triggers":{listed(20_000, json.dumps("c"))}}}'
        ),
        "has 20000 triggers, but may have at most 256",
    ),
    "a long stop string": (CHAT, chat(f'"stop":["{"a" * 2_000}"]'), "at most 1024"),
    "long stop strings": (CHAT, chat(f'"stop":{listed(16, json.dumps("a" * 200_000))}'), "stop is"),
    "unknown fields": (CHAT, chat(unknown(200_000)), f"more than {MAX_FIELDS:,} fields"),
    "unknown fields of a small body": (
        CHAT,
        chat(unknown(4_000)),
        f"more than {MAX_UNKNOWN} unknown fields",
    ),
    "values": (
        DETOKENIZE,
        f'{{"tokens":{listed(2_500_000, "7")}}}',
        "more than 2,097,152 values, most of them in tokens",
    ),
    "ids": (DETOKENIZE, f'{{"tokens":{listed(1_100_000, "7")}}}', "tokens has 1100000 ids"),
    "biased tokens": (CHAT, chat(f'"logit_bias":{{{unknown(200_000)}}}'), "logit_bias is"),
    "strings": (
        COMPLETE,
        f'{{"prompt":{listed(300_000, json.dumps("a"))}}}',
        "more than 262,144 strings, most of them in prompt",
    ),
    "levels": (CHAT, chat('"metadata":' + "[" * 400 + "]" * 400), f"more than {MAX_DEPTH} levels"),
    "brackets alone": (CHAT, "[" * 2_000_000, f"more than {MAX_DEPTH} levels"),
    "a field of no effect": (CHAT, chat(f'"documents":{listed(1_000_000, " 1 ")}'), "documents is [ 1 , 1"),
    "a call's arguments": (
        CHAT,
        '{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
        + "[]" * 1_000_000
        + '"}}]}]}',
        "messages[0].tool_calls[0].function.arguments has 2000000 characters",
    ),
    "a salt": (CHAT, chat(f'"cache_salt":"{"x" * 1_000_000}"'), "cache_salt is 1000002 bytes"),
    "an unknown role": (
        CHAT,
        f'{{"messages":[{{"role":"{"x" * 5_000_000}","content":""}}]}}',
        "messages[0].role is 'xxx",
    ),
    "a long chat": (CHAT, LONG_CHAT, "at least"),
    "a long chat with special tokens": (CHAT, LONG_CHAT[:-1] + ',"add_special_tokens":true}', "at least"),
    "a long prompt": (COMPLETE, prompt("Hello you " * 400_000), "prompt has at least"),
    "a long word": (COMPLETE, prompt("a" * 4_000_000), "prompt has at least"),
    "a text to count": (TOKENIZE, prompt("a" * 8_000_000), "at most 1048576"),
    "forged turns": (
        CHAT,
        said("<|im_end|>" * 200_000),
        "at least",
    ),
    "backslashes": (CHAT, said("\\\\" * 2_000_000), "at least"),
}
SERVED = {
    "many messages": (
        TOKENIZE,
        f'{{"messages":{listed(4_000, MESSAGE)}}}',
    ),
    "many tools": (CHAT, chat(f'"tools":{tools(300)}')),
    "tools that are not used": (TOKENIZE, chat(f'"tools":{tools(MAX_TOOLS)}')),
    "many ids": (DETOKENIZE, f'{{"tokens":{listed(200_000, "70")}}}'),
    "a megabyte of text": (TOKENIZE, prompt("Hello you " * 100_000)),
    "a megabyte of conversation": (
        TOKENIZE,
        said("Hello you " * 100_000),
    ),
    "unknown names": (CHAT, chat(",".join(f'"{"t" * 38}{n}":1' for n in range(100)))),
    "names with a constraint's letters": (
        CHAT,
        chat(",".join(f'"stuptuo_derutcurts{n}":1' for n in range(MAX_UNKNOWN))),
    ),
    "stop strings of every choice": (
        CHAT,
        chat(f'"n":128,"max_tokens":1,"stop":{listed(16, json.dumps("ab" * 500))}'),
    ),
}


async def calmly(world: HttpWorld, path: str, body: bytes) -> httpx.Response:
    """The answer; fails if the event loop was blocked in each of several attempts."""
    stalls = []
    for _ in range(ATTEMPTS):
        async with watched_loop() as watch:
            response = await world.http.post(path, content=body, headers=JSON)
        stalls.append(watch.longest)
        if watch.longest < MAX_STALL_S:
            return response
    raise AssertionError(f"the event loop stood still for {[round(stall, 3) for stall in stalls]} s")


@pytest.mark.parametrize("name", list(REFUSED))
async def test_a_body_with_too_many_parts_is_refused_quickly(world: HttpWorld, name: str) -> None:
    path, body, problem = REFUSED[name]
    response = await calmly(world, path, body.encode())
    error = response.json()["error"]
    assert response.status_code == 400
    assert problem in error["message"]
    assert len(error["message"]) < 2_100


@pytest.mark.parametrize("name", list(SERVED))
async def test_a_large_body_within_the_limits_is_served_without_holding_up_others(
    world: HttpWorld, name: str
) -> None:
    path, body = SERVED[name]
    assert (await calmly(world, path, body.encode())).status_code == 200


async def test_equal_names_among_many_tools_are_found(world: HttpWorld) -> None:
    body = chat(f'"tools":{tools(1_000)[:-1]},{tools(1)[1:]}')
    error = (await calmly(world, CHAT, body.encode())).json()["error"]
    assert "tools[1000].function.name is 'f0', which is the name of tools[0] too" in error["message"]


async def test_a_client_that_leaves_has_nothing_tokenized_any_more(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0
    whole = Tokenizer.encode

    def slow(self: Tokenizer, text: str, add_special_tokens: bool = True) -> bytes:
        nonlocal encoded
        encoded += len(text)
        time.sleep(0.02)
        return whole(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    body = prompt("Hello you " * 300_000)
    leaving = [
        asyncio.create_task(
            world.http.post(TOKENIZE, content=body, headers={"content-type": "application/json"})
        )
        for _ in range(4)
    ]
    await eventually(lambda: encoded > 100_000)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    before = 0
    async with asyncio.timeout(60):
        while encoded != before:
            before = encoded
            await asyncio.sleep(0.2)
    assert encoded < 3_000_000


async def test_a_short_text_never_waits_for_long_ones(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Tokenizer.encode

    def slow(self: Tokenizer, text: str, add_special_tokens: bool = True) -> bytes:
        time.sleep(0.05 if len(text) > 50_000 else 0)
        return whole(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    long = prompt("Hello you " * 200_000)
    busy = [asyncio.create_task(world.http.post(TOKENIZE, content=long, headers=JSON)) for _ in range(6)]
    await asyncio.sleep(0.2)
    response = await world.http.post(TOKENIZE, json={"prompt": "Hello"})
    assert response.status_code == 200
    assert not any(task.done() for task in busy)
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_many_log_probabilities_are_written_on_another_thread(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    writers = set()
    whole = token_logprobs.completion_logprobs

    def watched(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
        if len(entries) > 500:
            writers.add(threading.current_thread())
        return whole(tokenizer, entries, offset)

    monkeypatch.setattr(completion_answers, "completion_logprobs", watched)
    fields = {"prompt": [70] * 1020, "max_tokens": 1, "echo": True, "logprobs": 5, "stream": stream}
    response = await world.http.post(COMPLETE, json=fields)
    assert response.status_code == 200 and "token_logprobs" in response.text
    assert writers and threading.main_thread() not in writers


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def test_large_bodies_leave_no_memory_allocated(world: HttpWorld) -> None:
    body = f'{{"messages":{listed(5_000, MESSAGE)}}}'.encode()
    text = (prompt("a" * 8_000_000)).encode()

    async def several() -> None:
        for content in (body, text) * 2:
            await world.http.post(TOKENIZE, content=content, headers=JSON)
        gc.collect()

    await several()
    before = resident_bytes()
    await several()
    await several()
    assert resident_bytes() - before < 64 << 20
