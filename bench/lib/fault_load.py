"""Requests that are sent while faults are injected, and how each of them ended."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
from soak_requests import Body, schema, user, words
from streamed_reply import StreamedReply

CHAT = "/v1/chat/completions"
ANSWER_WITHIN_S = 90.0
RETRY_WITHIN_S = 120.0
RETRY_AFTER_S = 0.25
_KNOWN = 12


@dataclass(eq=False)
class Ask:
    """One request. `end` is the outcome of its first try: whole, error, cut, refused, silent or wrong.

    whole: the full answer, the same text as without faults. error: an error object or event. refused: status
    429 or 503, or no connection. cut: the connection ended early. silent: nothing for `ANSWER_WITHIN_S`.
    wrong: another text, or a stream that ended as if it were whole.
    """

    number: int
    started: float = field(default_factory=time.monotonic)
    end: str = "open"
    detail: str = ""
    retried: str = ""
    done: asyncio.Event = field(default_factory=asyncio.Event)


class WrongEndError(Exception):
    """The outcome of a request without a whole answer."""

    def __init__(self, end: str, detail: str) -> None:
        super().__init__(f"{end}: {detail[:300]}")
        self.end, self.detail = end, detail[:300]


class FaultLoad:
    """`clients` loops that ask and, after a failure, ask again until the answer is whole."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._known: dict[int, str] = {}
        self.open: set[Ask] = set()
        self.finished = 0
        self.ends: dict[str, Counter[str]] = {"streamed": Counter(), "whole": Counter()}
        """how the first tries of finished requests ended, by the kind of answer that was asked for"""
        self.wrong: list[str] = []

    async def learn(self) -> None:
        """The text of every request, asked alone and without faults."""
        async with self._http() as http:
            for number in range(_KNOWN):
                self._known[number] = await _answer(http, number)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._client(seed)) for seed in range(self._clients)]

    async def stop(self) -> None:
        """Raises the error of a failed client loop."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self.open.clear()

    async def probe(self, http: httpx.AsyncClient) -> bool:
        """Whether /health is 200 and a short request is answered."""
        try:
            if (await http.get("/health", timeout=2)).status_code != 200:
                return False
            body = {"messages": [user("Hi")], "max_tokens": 2}
            return (await http.post(CHAT, json=body, timeout=5)).status_code == 200
        except httpx.HTTPError:
            return False

    def _http(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self._url, timeout=ANSWER_WITHIN_S, limits=limits)

    async def _client(self, seed: int) -> None:
        rng = random.Random(seed)
        async with self._http() as http:
            while True:
                ask = Ask(rng.randrange(_KNOWN))
                self.open.add(ask)
                await self._try(http, ask)
                ask.done.set()
                self.open.discard(ask)
                self.finished += 1
                self.ends["streamed" if request(ask.number)[1] else "whole"][ask.end] += 1

    async def _try(self, http: httpx.AsyncClient, ask: Ask) -> None:
        deadline = ask.started + RETRY_WITHIN_S
        while True:
            try:
                text = await _answer(http, ask.number)
                end, detail = "whole", ""
                if text != self._known[ask.number]:
                    end, detail = "wrong", f"{text!r} instead of {self._known[ask.number]!r}"
                    self.wrong.append(detail)
            except WrongEndError as error:
                end, detail = error.end, error.detail
            if ask.end == "open":
                ask.end, ask.detail = end, detail
            if end in ("whole", "wrong") or time.monotonic() > deadline:
                ask.retried = end
                return
            await asyncio.sleep(RETRY_AFTER_S)


def request(number: int) -> tuple[Body, bool]:
    """A request with one right answer, and whether it is streamed. Every third has a schema, and half of them
    are sampled at random with a seed."""
    rng = random.Random(f"fault {number}")
    body: Body = {
        "messages": [user(words(rng, 5, 100))],
        "temperature": float(number % 4 > 1),
        "seed": number,
        "max_tokens": rng.randint(40, 160),
    }
    if number % 3 == 2:
        body |= {"json_schema": schema(rng), "complete_json": True, "max_tokens": 300}
    else:
        body["ignore_eos"] = True
    return body, number % 2 == 0


async def _answer(http: httpx.AsyncClient, number: int) -> str:
    body, is_streamed = request(number)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await (_streamed if is_streamed else _whole)(http, body)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise WrongEndError("refused", repr(error)) from None
    except (TimeoutError, httpx.TimeoutException) as error:
        raise WrongEndError("silent", repr(error)) from None
    except httpx.HTTPError as error:
        raise WrongEndError("cut", repr(error)) from None


async def _whole(http: httpx.AsyncClient, body: Body) -> str:
    answer = await http.post(CHAT, json=body)
    if answer.status_code != 200:
        raise _refusal(answer.status_code, answer.content)
    return str(answer.json()["choices"][0]["message"]["content"])


async def _streamed(http: httpx.AsyncClient, body: Body) -> str:
    reply = StreamedReply()
    async with http.stream("POST", CHAT, json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            raise _refusal(answer.status_code, await answer.aread())
        async for line in answer.aiter_lines():
            reply.take(line)
    if reply.error:
        raise WrongEndError("error", str(reply.error))
    if not reply.is_done:
        raise WrongEndError("wrong", "the stream ended without [DONE] or an error")
    return reply.text


def _refusal(status: int, body: bytes) -> WrongEndError:
    try:
        error = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        return WrongEndError("wrong", f"status {status} with {body[:100]!r}")
    return WrongEndError("refused" if error["code"] == "model_not_ready" else "error", f"{status} {error}")
