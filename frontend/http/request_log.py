"""Logs one line for each HTTP request when it ends: sizes, times and outcome, never keys, and texts only with
`--log-requests json+texts`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from starlette.types import Scope

from ...runtime.config import LogFormat
from ...runtime.logs import BARE
from ...runtime.messages import Tokens
from ..core.text.tokenizer import Tokenizer
from .outcome import Outcome

MAX_PATH = 100  # characters of a path that are logged
MAX_TOKENS = 2048  # tokens of all prompts in a line, and of all replies: decoding occupies the event loop
_SEPARATORS = re.compile("[\x7f-\x9f\u2028\u2029]")
log = logging.getLogger(__name__)


class RequestLog:
    """Logs each request when it ends. If there is a `tokenizer`, JSON lines also have its texts."""

    def __init__(self, form: LogFormat, model: str, tokenizer: Tokenizer | None = None) -> None:
        self._form = form
        self._model = model
        self._tokenizer = tokenizer

    def add(self, scope: Scope, outcome: Outcome) -> None:
        if self._form != "text":
            fields = _list_fields(outcome, self._model)
            if self._tokenizer is not None and (timer := outcome.timer) is not None:
                for name, tokens in (("prompts", timer.prompts()), ("replies", timer.replies())):
                    fields |= {name: _decode_texts(self._tokenizer, tokens)} if tokens else {}
            log.info("%s", _format_json(fields), extra=BARE)
        else:
            log.info("%s", _format_line(outcome))


def _format_json(fields: dict[str, object]) -> str:
    """JSON in one line. It escapes Unicode's line separators, which some readers take for the line's end."""
    return _SEPARATORS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(fields).decode())


def _list_fields(outcome: Outcome, model: str) -> dict[str, object]:
    """The members of a JSON line. Unknown values are left out. Times are in seconds."""
    timer = outcome.timer
    fields: dict[str, object | None] = {
        "time": datetime.fromtimestamp(outcome.ended_at, UTC).isoformat(timespec="milliseconds"),
        "id": outcome.id or None,
        "method": outcome.method,
        "path": outcome.path[:MAX_PATH],
        "model": None if timer is None else model,
        "key": outcome.key,
        "status": outcome.status or None,
        "code": outcome.code,
        "total_s": round(outcome.seconds, 6),
    }
    if timer is not None:
        fields |= {
            "prompt_tokens": None if timer.usage is None else timer.usage.prompt_tokens,
            "cached_tokens": None if timer.usage is None else timer.usage.cached_tokens,
            "output_tokens": None if timer.usage is None else timer.usage.completion_tokens,
            "queue_s": _round(timer.queued_s),
            "first_token_s": _round(timer.first_token_s),
            "between_tokens_s": _round(timer.between_tokens_s),
            "finish": timer.ends or None,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _decode_texts(tokenizer: Tokenizer, texts: Sequence[Tokens]) -> list[str]:
    """The texts with their special tokens. Each has the same share of `MAX_TOKENS`, and a longer one has no
    middle."""
    half = 4 * (MAX_TOKENS // len(texts) // 2)  # bytes shown at each end of a text
    return [_decode_text(tokenizer, tokens, half) for tokens in texts]


def _decode_text(tokenizer: Tokenizer, tokens: Tokens, half: int) -> str:
    """The text of the tokens. Only `half` bytes at each end of a long text are shown."""
    is_long = len(tokens) > 2 * half
    parts = [tokens[:half], tokens[len(tokens) - half :]] if is_long else [tokens]
    return " […] ".join(tokenizer.decode(part, skip_special_tokens=False) for part in parts)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _format_line(outcome: Outcome) -> str:
    """A line of words and `name=value`."""
    path = ascii(outcome.path[:MAX_PATH])[1:-1]
    parts = [outcome.method, path, str(outcome.status or "no-status")]
    if outcome.id:
        parts.append(outcome.id)
    if outcome.key:
        parts.append(f"key={outcome.key}")
    timer = outcome.timer
    if timer is not None and timer.usage is not None:
        parts += [f"prompt={timer.usage.prompt_tokens}", f"cached={timer.usage.cached_tokens}"]
        parts += [f"output={timer.usage.completion_tokens}"]
    if timer is not None and timer.first_token_s is not None:
        parts.append(f"first_token={timer.first_token_s:.3f}")
    if timer is not None and timer.ends:
        parts.append(f"finish={','.join(timer.ends)}")
    if outcome.code:
        parts.append(f"code={outcome.code}")
    return " ".join([*parts, f"seconds={outcome.seconds:.3f}"])
