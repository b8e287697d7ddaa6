"""A conversation of many short messages is rendered beside the event loop, as a large body is."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.text.chat_template import ChatTemplate
from http_world import MODEL, HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=4096) as world:
        yield world


@pytest.mark.parametrize("count", [3, 41])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/v1/responses", "input"),
        ("/v1/responses/input_tokens", "input"),
        ("/api/chat", "messages"),
        ("/generate", "messages"),
        ("/tokenize", "messages"),
    ],
)
async def test_many_messages_are_rendered_on_another_thread(
    world: HttpWorld, path: str, name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, threads = ChatTemplate.render, []

    def watched(*arguments: Any, **named: Any) -> str:
        threads.append(threading.current_thread())
        return render(*arguments, **named)

    monkeypatch.setattr(ChatTemplate, "render", watched)
    messages = [{"role": ("user", "assistant")[number % 2], "content": "a"} for number in range(count)]
    body = {"model": MODEL, name: messages, "stream": False}
    body |= {"max_tokens": 4} if path in ("/v1/messages", "/generate") else {}
    answer = await world.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert threads
    assert (threading.current_thread() in threads) == (count == 3)
