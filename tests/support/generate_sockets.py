"""WebSockets of a real server, at GET /generate/socket."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from certificates import client_context
from served import PATIENCE, Served
from websockets.sync.client import ClientConnection, connect, unix_connect

PATH = "/generate/socket"


def open_socket(server: Served) -> ClientConnection:
    """A connection by TCP, TLS or a Unix socket, as the server's URL says."""
    if server.url.startswith("unix:"):
        path = server.url.removeprefix("unix:")
        return unix_connect(path, f"ws://localhost{PATH}", open_timeout=PATIENCE)
    tls = client_context() if server.url.startswith("https:") else None
    return connect(server.url.replace("http", "ws", 1) + PATH, ssl=tls, open_timeout=PATIENCE)


def begin(socket: ClientConnection, **request: Any) -> None:
    """Starts a request with the id "a"."""
    socket.send(json.dumps({"type": "generate", "id": "a", "request": request}))


def until_end(socket: ClientConnection) -> list[Any]:
    """The messages of the request, to its last. Raises websockets' ConnectionClosed."""
    found: list[Any] = []
    while not found or found[-1]["type"] == "event":
        found.append(json.loads(socket.recv(PATIENCE)))
    return found


def streams_a_reply(server: Served, tokens: int = 4) -> bool:
    """Whether a request over a new connection gets an event for each token, and its end."""
    with closing(open_socket(server)) as socket:
        begin(socket, prompt="Hello", stream=True, min_tokens=tokens, max_tokens=tokens)
        *events, last = until_end(socket)
    ids = [token for message in events for token in message["event"]["token_ids"]]
    counted: int = last["end"]["usage"]["completion_tokens"]
    return len(ids) == counted == tokens
