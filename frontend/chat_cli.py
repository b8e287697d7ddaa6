"""`arbora chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..runtime.errors import ConfigError
from .launch.program_name import program_name

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 600.0
COMMANDS = "/reset begins anew, /exit ends"
FULL = "(this turn is forgotten: a shorter one may fit, and /reset starts a new conversation)"
CUT = "\n(the reply has reached its limit)"
DIM, PLAIN = "\x1b[2m", "\x1b[22m"  # ECMA-48
Turn = dict[str, str]


class ReplyError(Exception):
    """The server gave no answer or an incomplete one. The message and the code, if any, are the server's."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class KeyNeededError(ReplyError):
    """The server answers only requests with an API key that it knows."""


class Piece(NamedTuple):
    """A part of a reply: of the reasoning before it, or of its text. `is_cut`: a limit ended it."""

    reasoning: str
    text: str
    is_cut: bool


class Server:
    """A server with OpenAI's API. `url` may end in /v1."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: expected an address such as {DEFAULT_URL}.")
        self._secure = parts.scheme == "https"
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        self._has_key = bool(api_key)
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The name of the served model. Raises ConfigError if the server doesn't name one."""
        try:
            with self._request("GET", "/v1/models") as response:
                return str(msgspec.json.decode(response.read())["data"][0]["id"])
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the certificate of {self._url} is not trusted ({error.verify_message}). Set SSL_CERT_FILE "
                "to a PEM file with it or its issuer, or name the server with --url as the certificate does."
            ) from error
        except OSError as error:
            raise ConfigError(
                f"no server answers at {self._url} ({error.strerror or error}). "
                f"Start one with `{program_name()} serve`, or name another with --url."
            ) from error
        except KeyNeededError as error:
            asks = (
                "does not know this API key: give another"
                if self._has_key
                else "asks for an API key: give it"
            )
            raise ConfigError(
                f"the server at {self._url} {asks} with --api-key KEY or in ARBORA_API_KEY."
            ) from error
        except (ReplyError, http.client.HTTPException, msgspec.DecodeError, LookupError, TypeError) as error:
            raise ConfigError(f"the server at {self._url} does not tell its model: {error}") from error

    def reply(self, model: str, turns: list[Turn]) -> Iterator[Piece]:
        """Yields the pieces of the next turn. Raises ReplyError."""
        body = msgspec.json.encode({"model": model, "messages": turns, "stream": True})
        try:
            with self._request("POST", "/v1/chat/completions", body) as response:
                yield from _pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise ReplyError(f"the connection broke: {error}") from error

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connect = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = connect(self._address, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise _refusal(response.status, response.read())
            yield response
        finally:
            connection.close()


def chat(url: str, api_key: str | None, system: str | None) -> int:
    """Talks until /exit or the end of the input. Raises ConfigError if there is no server."""
    server = Server(url, api_key)
    model = server.model()
    print(f"{model} at {url}. {COMMANDS}.")
    start = [{"role": "system", "content": system}] if system else []
    turns = list(start)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while (text := _read_line()) != "/exit":
            if text == "/reset":
                turns = list(start)
            elif text.startswith("/") and not text.startswith("//"):
                print(f"There is no {text.split()[0]}. {COMMANDS}, //text says what begins with a slash.")
            elif text:
                _take_turn(server, model, turns, text.removeprefix("/"))
    print()
    return 0


def _take_turn(server: Server, model: str, turns: list[Turn], text: str) -> None:
    """Adds the user's message and the reply to `turns`, or neither without a whole reply."""
    question: Turn = {"role": "user", "content": text}
    shown = _Shown()
    try:
        for piece in server.reply(model, [*turns, question]):
            shown.add(piece)
        turns += [question, {"role": "assistant", "content": shown.text}]
        print()
    except KeyboardInterrupt:
        print("\n(interrupted: this turn is forgotten)")
    except ReplyError as error:
        print(f"\n(no reply: {error})", file=sys.stderr)
        if error.code == "context_length_exceeded":
            print(FULL, file=sys.stderr)


class _Shown:
    """Prints a reply: the reasoning first, dimmed on a terminal, then an empty line and the text."""

    def __init__(self) -> None:
        self._dims = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._is_reasoning = False
        self.text = ""

    def add(self, piece: Piece) -> None:
        if piece.reasoning:
            self._is_reasoning = True
            self._print(f"{DIM}{piece.reasoning}{PLAIN}" if self._dims else piece.reasoning)
        if piece.text:
            if self._is_reasoning:
                self._print("\n\n")
            self._is_reasoning = False
            self._print(piece.text)
            self.text += piece.text
        if piece.is_cut:
            self._print(CUT)

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)


def _read_line() -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives `input` line editing)
    return input("> " if sys.stdin.isatty() else "").strip()


def _pieces(lines: http.client.HTTPResponse) -> Iterator[Piece]:
    """The pieces in a stream of server-sent events."""
    for line in lines:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        event: Any = msgspec.json.decode(data)
        if "error" in event:
            raise ReplyError(str(event["error"]["message"]))
        for choice in event["choices"]:
            delta = choice["delta"]
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            yield Piece(reasoning, delta.get("content") or "", choice.get("finish_reason") == "length")


def _refusal(status: int, body: bytes) -> ReplyError:
    kind = KeyNeededError if status == http.HTTPStatus.UNAUTHORIZED else ReplyError
    try:
        error = msgspec.json.decode(body)["error"]
        return kind(f"status {status}: {error['message']}", str(error.get("code")))
    except (msgspec.DecodeError, LookupError, TypeError):
        return kind(f"status {status}: {body.decode(errors='replace')[:200]}")
