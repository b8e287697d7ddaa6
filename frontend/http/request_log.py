"""Logs one line for each HTTP request when it ends: sizes, times and outcome, never keys, and texts only with
`--log-requests json+texts`. While a request runs for long, a line now and then says how far it is.

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
from ...runtime.logs import BARE
from ...runtime.messages import RequestList, Tokens
from ..core.replica.engine_client import EngineClient
from ..core.text.tokenizer import Tokenizer
from .outcome import Outcome
from .request_records import MAX_PATH, explain, find_model, has_failed, is_poll, list_fields

MAX_TOKENS = 2048  # tokens of all prompts in a line, and of all replies: decoding occupies the event loop
MAX_LINES = 20  # lines of requests that a process writes in a second
PROGRESS_S = 10.0  # seconds between two lines about the oldest open request
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
        if log.isEnabledFor(logging.INFO) and (has_failed(outcome) or not is_poll(outcome)):
            self.write(outcome)

    def write(self, outcome: Outcome) -> None:
        if self._form == "text":
            self._write_limited(outcome)
        else:
            fields = list_fields(outcome, self._model)
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

    async def watch(self, engine: EngineClient) -> None:
        """Logs how far the oldest open request is, each `PROGRESS_S` seconds, until cancelled."""
        while self._form == "text" and log.isEnabledFor(logging.INFO):
            await asyncio.sleep(PROGRESS_S)
            found = await engine.list_requests(None)
            if found is not None and found.items and found.items[0].age_s >= PROGRESS_S:
                log.info("%s %s", _time(time.time()), format_progress(found))

    def end_second(self) -> None:
        """Writes how many requests had no line since the last call."""
        left_out, self._left_out, self._lines = self._left_out, Counter(), 0
        if left_out:
            statuses = ", ".join(f"{count} × {status}" for status, count in left_out.most_common())
            log.info("%s and %d more requests: %s", _time(time.time()), left_out.total(), statuses)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _format_json(fields: dict[str, object]) -> str:
    """JSON in one line. It escapes Unicode's line separators, which some readers take for the line's end."""
    return _SEPARATORS.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(fields).decode())


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


def _format_line(outcome: Outcome, served: str | None) -> str:
    """A line of words and `name=value`. It has the model's name if `served`, the usual name, is given. What
    clients choose freely is escaped or stands at the end, so that no client can forge a part of a line."""
    timer = outcome.timer
    usage = None if timer is None else timer.usage
    ends = [] if timer is None else timer.ends
    values: dict[str, object | None] = {
        "model": None if served is None else _escape(find_model(outcome, served) or "") or None,
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
    words = [_time(outcome.ended_at), _escape_name(outcome.method), _escape(outcome.path) or "-"]
    words += [str(outcome.status or "no-status"), _escape_name(outcome.id)]
    return " ".join([*words, *(f"{name}={value}" for name, value in values.items() if value is not None)])


def format_progress(found: RequestList) -> str:
    """How far the oldest open request is, and how many others are open."""
    oldest = found.items[0]
    if oldest.state == "compiling":
        done = "waits for its constraint"
    elif oldest.state == "waiting":
        done = "waits to be started"
    elif oldest.output_tokens:
        done = f"has {oldest.output_tokens:,} output tokens"
    else:
        done = f"has {oldest.ready_tokens:,} of {oldest.prompt_tokens:,} prompt tokens computed or cached"
    others = f"; {found.total - 1:,} more open" if found.total > 1 else ""
    return f"open {_escape(oldest.id)} {done} after {oldest.age_s:.0f} s{others}"


def _show(number: float | None, digits: int) -> str | None:
    return None if number is None else f"{number:.{digits}f}"


def _escape_name(word: str) -> str:
    """A word that can't be read as `name=value`."""
    return _escape(word).replace("=", "%3D") or "-"


def _escape(word: str) -> str:
    return ascii(word[:MAX_PATH])[1:-1].replace(" ", "%20")
