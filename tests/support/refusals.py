"""Requests that a server must refuse, and the error of each."""

from __future__ import annotations

from typing import Any

from http_world import MODEL, HttpWorld

HELLO: Any = [{"role": "user", "content": "Hello"}]


async def chat_error(world: HttpWorld, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, **fields}
    return await error_of(world, "/v1/chat/completions", body)


async def completion_error(world: HttpWorld, **fields: Any) -> Any:
    return await error_of(world, "/v1/completions", {"model": MODEL, "prompt": "Hello", **fields})


async def error_of(world: HttpWorld, path: str, body: Any) -> Any:
    response = await world.http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error
