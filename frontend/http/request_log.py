"""Logs one line for each HTTP request when it ends: sizes, times and outcome, never keys, and texts only with
`--log-texts`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.config import LogFormat
from ...runtime.logs import BARE
from ...runtime.messages import Tokens
from ..text.tokenizer import Tokenizer
from .outcome import Outcome, with_outcome

LONGEST_PATH = 100  # characters; a path may be as long as a request line
MOST_TOKENS = 2048  # of a text; a longer one is logged without its middle
log = logging.getLogger(__name__)


class RequestLog:
    """An ASGI application that calls another one for each request and logs the outcome.

    With a `tokenizer` JSON lines have the texts of prompts and replies.
    """

    def __init__(self, app: ASGIApp, form: LogFormat, model: str, tokenizer: Tokenizer | None = None) -> None:
        self._app = app
        self._form = form
        self._model = model
        self._tokenizer = tokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await with_outcome(self._app, scope, receive, send, self._log)

    def _log(self, outcome: Outcome) -> None:
        if self._form == "json":
            fields = _fields(outcome, self._model)
            if self._tokenizer is not None and outcome.work is not None:
                for name in ("prompts", "replies"):
                    texts = [_text(self._tokenizer, tokens) for tokens in getattr(outcome.work, name)]
                    fields |= {name: texts} if texts else {}
            log.info("%s", msgspec.json.encode(fields).decode(), extra=BARE)
        else:
            log.info("%s", _line(outcome))


def _fields(outcome: Outcome, model: str) -> dict[str, object]:
    """The members of a JSON line. Unknown ones are left out; times are in seconds."""
    work = outcome.work
    fields: dict[str, object | None] = {
        "time": datetime.fromtimestamp(outcome.ended_at, UTC).isoformat(timespec="milliseconds"),
        "id": outcome.id or None,
        "method": outcome.method,
        "path": outcome.path[:LONGEST_PATH],
        "model": None if work is None else model,
        "key": outcome.key,
        "status": outcome.status or None,
        "code": outcome.code,
        "total_s": round(outcome.seconds, 6),
    }
    if work is not None:
        fields |= {
            "prompt_tokens": None if work.usage is None else work.usage.prompt_tokens,
            "cached_tokens": None if work.usage is None else work.usage.cached_tokens,
            "output_tokens": None if work.usage is None else work.usage.completion_tokens,
            "queue_s": _rounded(work.queued_s),
            "first_token_s": _rounded(work.first_token_s),
            "between_tokens_s": _rounded(work.between_tokens_s),
            "finish": work.ends or None,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _text(tokenizer: Tokenizer, tokens: Tokens) -> str:
    """The text with its special tokens; of a long one the first half and the last half of `MOST_TOKENS`."""
    parts = [tokens]
    if len(tokens) > 4 * MOST_TOKENS:
        parts = [tokens[: 2 * MOST_TOKENS], tokens[-2 * MOST_TOKENS :]]
    return " […] ".join(tokenizer.decode(part, skip_special_tokens=False) for part in parts)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _line(outcome: Outcome) -> str:
    """A line of words and `name=value`."""
    path = ascii(outcome.path[:LONGEST_PATH])[1:-1]
    parts = [outcome.method, path, str(outcome.status or "no-status")]
    if outcome.id:
        parts.append(outcome.id)
    if outcome.key:
        parts.append(f"key={outcome.key}")
    work = outcome.work
    if work is not None and work.usage is not None:
        parts += [f"prompt={work.usage.prompt_tokens}", f"cached={work.usage.cached_tokens}"]
        parts += [f"output={work.usage.completion_tokens}"]
    if work is not None and work.first_token_s is not None:
        parts.append(f"first_token={work.first_token_s:.3f}")
    if work is not None and work.ends:
        parts.append(f"finish={','.join(work.ends)}")
    if outcome.code:
        parts.append(f"code={outcome.code}")
    return " ".join([*parts, f"seconds={outcome.seconds:.3f}"])
