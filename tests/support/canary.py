"""A stream and a ping that run beside other requests, and the longest silence of either."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import httpx

PING_EVERY_S = 0.1
_STREAMED = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}


class Canary:
    """Streams and pings from threads of its own while it is open.

    `faults` are streams that ended otherwise than with their last token, and pings that were not answered
    with 200. The gaps are in seconds.
    """

    def __init__(self, url: str, key: str = "none") -> None:
        self._http = httpx.Client(base_url=url, timeout=120.0, headers={"Authorization": f"Bearer {key}"})
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._stream), threading.Thread(target=self._ping)]
        self.faults: list[str] = []
        self.stream_gap = 0.0
        self.ping_gap = 0.0
        self.streams = 0

    def __enter__(self) -> Canary:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._http.close()

    def _stream(self) -> None:
        while not self._ended.is_set():
            try:
                self._stream_once()
            except httpx.HTTPError as error:
                self.faults.append(f"stream: {error!r}")
                time.sleep(PING_EVERY_S)

    def _stream_once(self) -> None:
        last, line = time.monotonic(), ""
        with self._http.stream("POST", "/v1/completions", json=_STREAMED) as answer:
            for line in answer.iter_lines():
                now = time.monotonic()
                self.stream_gap, last = max(self.stream_gap, now - last), now
                if line == "data: [DONE]":
                    self.streams += 1
                    return
                if self._ended.is_set():
                    return
        self.faults.append(f"stream: status {answer.status_code}, it ended with {line!r}")

    def _ping(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            try:
                status = self._http.get("/health").status_code
            except httpx.HTTPError as error:
                self.faults.append(f"/health: {error!r}")
            else:
                if status != 200:
                    self.faults.append(f"/health: {status}")
            self.ping_gap = max(self.ping_gap, time.monotonic() - started)
            time.sleep(PING_EVERY_S)
