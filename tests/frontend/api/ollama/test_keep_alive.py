"""The durations of `keep_alive`, as Go's `time.ParseDuration` reads them."""

from __future__ import annotations

import math

import pytest
from arbora.frontend.api.ollama.keep_alive import keep_alive_seconds
from arbora.runtime.errors import RequestError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0),
        (300, 300),
        (0.5, 0.5),
        (-1, math.inf),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("100µs", 1e-4),
        ("+10s", 10),
        (".5m", 30),
        ("-1m", math.inf),
        ("0", 0),
        ("60", 60),
        ("-1", math.inf),
    ],
    ids=str,
)
def test_a_duration_is_read_as_seconds(value: float | str | None, seconds: float | None) -> None:
    found = keep_alive_seconds(value)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["", "5 m", "m5", "five", "1d", "5m5", "--5m", "1" * 400, "٣m"], ids=str)
def test_another_text_is_refused(value: str) -> None:
    with pytest.raises(RequestError) as caught:
        keep_alive_seconds(value)
    assert caught.value.param == "keep_alive"
