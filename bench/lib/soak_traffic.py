"""The actions of the soak's clients, and the checks of every answer."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from soak_requests import CLOCK, FIXED, REGEXES, WEATHER, Body, bad_body, schema, user, words
from streamed_reply import StreamedReply

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FINISHED = ("stop", "length", "tool_calls")
MAX_TOKENS = 120
KNOWN_SCHEMAS = 40
MAX_KEPT_FAILURES = 200


@dataclass
class Tally:
    """Counts since the last table row; `failures` are of the whole run."""

    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)
    output_tokens: int = 0
    failed: int = 0


class WrongAnswerError(Exception):
    """An answer that differs from the right one."""


class Traffic:
    """The actions of all clients of one server, and their tally."""

    def __init__(self, url: str, keys: list[str]) -> None:
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits)
        self._keys = keys or ["none"]
        self._fixed: dict[int, Any] = {}
        self.tally = Tally()
        self.failures: list[str] = []
        self.actions: list[tuple[Callable[[random.Random, str], Awaitable[None]], int]] = [
            (self.converse, 5),
            (self.complete, 2),
            (self.match_schema, 4),
            (self.match_regex, 2),
            (self.call_tool, 2),
            (self.ask_for_several, 1),
            (self.ask_for_logprobs, 1),
            (self.pin, 1),
            (self.tokenize, 1),
            (self.leave, 2),
            (self.read_slowly, 1),
            (self.send_nonsense, 2),
            (self.look_around, 1),
            (self.repeat_fixed, 4),
        ]

    async def close(self) -> None:
        await self._http.aclose()

    async def act(self, rng: random.Random) -> None:
        """One action, chosen at random. A wrong answer is noted, not raised."""
        actions, weights = zip(*self.actions, strict=True)
        action = rng.choices(actions, weights)[0]
        name = action.__name__
        try:
            await action(rng, rng.choice(self._keys))
            self.tally.requests[name] += 1
        except (WrongAnswerError, httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            self.fail(f"{name}: {error!r}")

    def fail(self, what: str) -> None:
        self.tally.failed += 1
        if len(self.failures) < MAX_KEPT_FAILURES:
            self.failures.append(f"{time.strftime('%H:%M:%S')} {what[:600]}")

    def take_hostile(self, name: str, status: int) -> None:
        """`status` is 0 if there was no answer."""
        if status == 0 or status >= 500:
            self.fail(f"hostile {name}: status {status}")
        else:
            self.tally.requests["hostile"] += 1

    async def converse(self, rng: random.Random, key: str) -> None:
        messages = [{"role": "system", "content": "You are a helpful assistant. " + words(rng, 0, 60)}]
        for _ in range(rng.randint(1, 4)):
            messages.append(user(words(rng, 3, 120)))
            body = {"messages": messages, "max_tokens": rng.randint(4, MAX_TOKENS)}
            reply = await (self._stream if rng.random() < 0.6 else self._ask)(body, key)
            messages.append({"role": "assistant", "content": reply["message"].get("content") or ""})

    async def complete(self, rng: random.Random, key: str) -> None:
        body = {"prompt": words(rng, 2, 300), "max_tokens": rng.randint(1, 60), "temperature": rng.random()}
        answer = await self._post(COMPLETION, body, key)
        self._count(answer)
        _check(answer["choices"][0]["finish_reason"] in FINISHED, answer)

    async def match_schema(self, rng: random.Random, key: str) -> None:
        """Half of the schemas are new, half are repeated."""
        number = rng.randrange(KNOWN_SCHEMAS) if rng.random() < 0.5 else rng.randrange(1 << 40)
        wanted = schema(random.Random(number))
        body: Body = {
            "messages": [user(words(rng, 3, 40))],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}},
            "complete_json": True,
            "max_tokens": 400,
        }
        reply = await (self._stream if rng.random() < 0.5 else self._ask)(body, key)
        text = reply["message"]["content"]
        faults = [error.message for error in Draft202012Validator(wanted).iter_errors(json.loads(text))]
        _check(not faults, (faults, text, wanted))

    async def match_regex(self, rng: random.Random, key: str) -> None:
        pattern = rng.choice(REGEXES)
        body = {"messages": [user(words(rng, 1, 20))], "regex": pattern, "max_tokens": 100}
        reply = await self._ask(body, key)
        if reply["finish_reason"] == "stop":
            _check(re.fullmatch(pattern, reply["message"]["content"]), (pattern, reply))

    async def call_tool(self, rng: random.Random, key: str) -> None:
        body = {
            "messages": [user(words(rng, 3, 30))],
            "tools": [WEATHER, CLOCK],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 300,
        }
        reply = await (self._stream if rng.random() < 0.5 else self._ask)(body, key)
        if reply["finish_reason"] == "length":
            return
        calls = reply["message"]["tool_calls"]
        arguments = json.loads(calls[0]["function"]["arguments"])
        _check(set(arguments) == {"city", "days"}, calls)

    async def ask_for_several(self, rng: random.Random, key: str) -> None:
        body = {"messages": [user(words(rng, 3, 60))], "n": rng.randint(2, 4), "max_tokens": 30}
        answer = await self._post(CHAT, body, key)
        self._count(answer)
        _check(len(answer["choices"]) == body["n"], answer)

    async def ask_for_logprobs(self, rng: random.Random, key: str) -> None:
        body = {"messages": [user(words(rng, 3, 60))], "logprobs": True, "top_logprobs": 2, "max_tokens": 20}
        reply = await self._ask(body, key)
        _check(all(len(item["top_logprobs"]) == 2 for item in reply["logprobs"]["content"]), reply)

    async def pin(self, rng: random.Random, key: str) -> None:
        """Pins a prefix, asks a question that begins with it, and unpins it."""
        prefix = words(rng, 60, 120)
        answer = await self._send("POST", "/cache/pin", key, json={"prompt": prefix, "ttl_s": 60})
        if answer.status_code == 409:
            self.tally.refused["409 pin"] += 1
            return
        _check(answer.status_code == 200, answer.text)
        self._count(await self._post(COMPLETION, {"prompt": prefix + " then", "max_tokens": 8}, key))
        ended = await self._send("DELETE", f"/cache/pin/{answer.json()['id']}", key)
        _check(ended.status_code == 200, ended.text)

    async def tokenize(self, rng: random.Random, key: str) -> None:
        text = words(rng, 1, 200)
        tokens = (await self._post("/tokenize", {"prompt": text, "add_special_tokens": False}, key))["tokens"]
        back = await self._post("/detokenize", {"tokens": tokens}, key)
        _check(back["prompt"] == text, back)

    async def leave(self, rng: random.Random, key: str) -> None:
        """A client that disconnects in the middle of its stream."""
        body = {"messages": [user(words(rng, 3, 200))], "max_tokens": 400, "ignore_eos": True, "stream": True}
        stay = rng.randint(0, 12)
        async with self._http.stream("POST", CHAT, json=body, headers=_headers(key)) as answer:
            _check(answer.status_code == 200, answer.status_code)
            async for _ in answer.aiter_lines():
                stay -= 1
                if stay < 0:
                    return

    async def read_slowly(self, rng: random.Random, key: str) -> None:
        body = {"messages": [user(words(rng, 3, 20))], "max_tokens": 60}
        await self._stream(body, key, pause=0.1)

    async def send_nonsense(self, rng: random.Random, key: str) -> None:
        body, param = bad_body(rng)
        answer = await self._send("POST", CHAT, key, json=body)
        self.tally.refused[str(answer.status_code)] += 1
        error = answer.json()["error"]
        _check(answer.status_code == 400 and error["param"] == param, (body, answer.text))

    async def look_around(self, rng: random.Random, key: str) -> None:
        for path in ("/health", "/v1/models", "/cache", "/version"):
            answer = await self._send("GET", path, key)
            _check(answer.status_code == 200, (path, answer.status_code, answer.text))

    async def repeat_fixed(self, rng: random.Random, key: str) -> None:
        """A request whose answer must equal its first answer under any load."""
        number = rng.randrange(len(FIXED))
        body = {"temperature": 0, **FIXED[number]}
        answer = await self._post(CHAT, body, key)
        self._count(answer)
        said = [_comparable(choice) for choice in answer["choices"]]
        first = self._fixed.setdefault(number, said)
        _check(said == first, (body["messages"], said, first))

    async def _ask(self, body: Body, key: str) -> Any:
        answer = await self._post(CHAT, body, key)
        self._count(answer)
        choice = answer["choices"][0]
        _check(choice["finish_reason"] in FINISHED, choice)
        return choice

    async def _stream(self, body: Body, key: str, pause: float = 0.0) -> Any:
        """The whole reply, assembled from a stream."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        parts = StreamedReply()
        async with self._http.stream("POST", CHAT, json=body, headers=_headers(key)) as answer:
            if answer.status_code != 200:
                raise WrongAnswerError(
                    answer.status_code, (await answer.aread()).decode()[:400], str(body)[:300]
                )
            async for line in answer.aiter_lines():
                parts.take(line)
                if pause:
                    await asyncio.sleep(pause)
        _check(not parts.error and parts.is_done and parts.finish_reason in FINISHED, vars(parts))
        self.tally.output_tokens += parts.output_tokens
        self.tally.ttft += parts.ttft
        return parts.choice()

    async def _post(self, path: str, body: Body, key: str) -> Any:
        answer = await self._send("POST", path, key, json=body)
        if answer.status_code != 200:
            raise WrongAnswerError(answer.status_code, answer.text[:400], str(body)[:300])
        return answer.json()

    async def _send(self, method: str, path: str, key: str, **options: Any) -> httpx.Response:
        return await self._http.request(method, path, headers=_headers(key), **options)

    def _count(self, answer: Any) -> None:
        self.tally.output_tokens += answer["usage"]["completion_tokens"]


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _comparable(choice: Any) -> Any:
    """A choice without the random ids of its calls, and without the values of logprobs, which are rounded."""
    logprobs = choice.get("logprobs") or {}
    tokens = [
        (item["token"], [other["token"] for other in item["top_logprobs"]])
        for item in logprobs.get("content") or ()
    ]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return choice["message"].get("content"), calls, choice["finish_reason"], tokens


def _check(truth: object, about: object) -> None:
    if not truth:
        raise WrongAnswerError(str(about)[:600])
