"""Logs one line for each HTTP request when it ends: sizes, times and outcome, never keys, and texts only with
`--log-requests json+texts`.

Lines in the form `text`, which is the default, are limited: in each second `MAX_LINES` are written, and the
others are counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from starlette.types import Scope

from ...runtime.config import LogFormat
from ...runtime.errors import RequestError
from ...runtime.logs import BARE
from ...runtime.messages import Tokens
from ..core.text.tokenizer import Tokenizer
from .outcome import Outcome

MAX_PATH = 100  # characters of a path or a name that are logged
MAX_TOKENS = 2048  # tokens of all prompts in a line, and of all replies: decoding occupies the event loop
MAX_LINES = 20  # lines of requests that a process writes in a second
MAX_REASON = 200  # characters of an error's message that are logged
MAX_SEARCHED = 2048  # characters of a message that are searched for quoted values
_SILENT = ("/health", "/ping", "/version", "/metrics", "/cache", "/page", "/docs", "/openapi.json")
"""Paths that programs and the page ask for again and again. GET requests for them, for `/` and for what is
below them are logged only if they fail."""
_QUOTED = re.compile(
    r""" "(?:[^"\\]|\\.)*(?:"|$) | (?<!\w)'(?:[^'\\]|\\.)*(?:'|$) """, re.DOTALL | re.VERBOSE
)
_SEPARATORS = re.compile("[\x7f-\x9f\u2028\u2029]")
log = logging.getLogger(__name__)


class RequestLog:
    """Logs each request when it ends. `model` is the served model's name, which lines have only if the server
    `has_several` names. If there is a `tokenizer`, JSON lines also have texts. `clock` returns seconds."""

    def __init__(
        self,
        form: LogFormat,
        model: str,
        has_several: bool = False,
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._form = form
        self._model = model
        self._has_several = has_several
        self._tokenizer = tokenizer
        self._clock = clock
        self._second = 0.0  # when the current second began
        self._lines = 0  # lines in the current second
        self._left_out: Counter[int] = Counter()  # requests of the current second without a line, by status

    def add(self, scope: Scope, outcome: Outcome) -> None:
        if log.isEnabledFor(logging.INFO) and not _is_silent(outcome):
            self.write(outcome)

    def write(self, outcome: Outcome) -> None:
        if self._form == "text":
            self._write_limited(outcome)
        else:
            fields = _list_fields(outcome, self._model)
            if self._tokenizer is not None and (timer := outcome.timer) is not None:
                for name, tokens in (("prompts", timer.prompts()), ("replies", timer.replies())):
                    fields |= {name: _decode_texts(self._tokenizer, tokens)} if tokens else {}
            log.info("%s", _format_json(fields), extra=BARE)

    def _write_limited(self, outcome: Outcome) -> None:
        now = self._clock()
        if now - self._second >= 1:
            self.end_second()
            self._second = now
        if self._lines < MAX_LINES:
            self._lines += 1
            log.info("%s", _format_line(outcome, self._model if self._has_several else None))
            return
        if not self._left_out:
            asyncio.get_running_loop().call_later(self._second + 1 - now, self.end_second)
        self._left_out[outcome.status] += 1

    def end_second(self) -> None:
        """Writes how many requests had no line since the last call."""
        left_out, self._left_out, self._lines = self._left_out, Counter(), 0
        if left_out:
            statuses = ", ".join(f"{count} × {status}" for status, count in left_out.most_common())
            log.info("%s and %d more requests: %s", _time(time.time()), left_out.total(), statuses)


def _is_silent(outcome: Outcome) -> bool:
    """Whether a request is one of the many that look whether the server is well."""
    if outcome.method not in ("GET", "HEAD") or outcome.status >= 400 or outcome.error is not None:
        return False
    path = outcome.path
    return path == "/" or any(path == each or path.startswith(f"{each}/") for each in _SILENT)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def explain(error: RequestError) -> str:
    """The message of an error for the log, in one line. Without the values that it quotes, if they may be
    texts of the request."""
    text = error.message[:MAX_SEARCHED]
    if error.status == 400:
        text = _QUOTED.sub("…", text)
    short = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in short)


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
        "model": None if timer is None else _find_model(outcome, model),
        "key": outcome.key,
        "status": outcome.status or None,
        "code": outcome.code,
        "reason": None if outcome.error is None else explain(outcome.error),
        "client": "gone" if outcome.is_abandoned else None,
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
            "tokens_per_s": _round(timer.tokens_per_s),
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


def _find_model(outcome: Outcome, served: str) -> str | None:
    """The name that the request used for the model, once the request was accepted; None before."""
    if outcome.timer is None or outcome.timer.sampling is None:
        return None
    return outcome.model or served


def _format_line(outcome: Outcome, served: str | None) -> str:
    """A line of words and `name=value`. It has the model's name if `served`, the usual name, is given. What
    clients choose freely is escaped or stands at the end, so that no client can forge a part of a line."""
    timer = outcome.timer
    usage = None if timer is None else timer.usage
    ends = [] if timer is None else timer.ends
    values: dict[str, object | None] = {
        "model": None if served is None else _escape(_find_model(outcome, served) or "") or None,
        "key": outcome.key,
        "prompt": None if usage is None else usage.prompt_tokens,
        "cached": None if usage is None else usage.cached_tokens,
        "output": None if usage is None else usage.completion_tokens,
        "first_token": None if timer is None else _show(timer.first_token_s, 3),
        "tokens_per_s": None if timer is None else _show(timer.tokens_per_s, 1),
        "finish": ",".join(ends) or None,
        "client": "gone" if outcome.is_abandoned else None,
        "seconds": _show(outcome.seconds, 3),
        "code": outcome.code,
        "reason": None if outcome.error is None else explain(outcome.error),
    }
    words = [_time(outcome.ended_at), outcome.method or "-", _escape(outcome.path) or "-"]
    words += [str(outcome.status or "no-status"), outcome.id or "-"]
    return " ".join([*words, *(f"{name}={value}" for name, value in values.items() if value is not None)])


def _show(number: float | None, digits: int) -> str | None:
    return None if number is None else f"{number:.{digits}f}"


def _escape(word: str) -> str:
    return ascii(word[:MAX_PATH])[1:-1].replace(" ", "%20")
