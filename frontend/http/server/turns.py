"""Limits how many requests begin in one turn of the event loop, so that other work runs between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Lets `most` requests begin in each turn of the event loop. Others wait for later turns, in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_armed = False

    def take(self, begin: Callable[[], None]) -> bool:
        """Whether the request may begin in this turn; otherwise `begin` is called in a later one."""
        self._arm()
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return True
        self._waiting.append(begin)
        return False

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_armed = False
        self._left = self._most
        if not self._waiting:
            return
        self._arm()
        while self._waiting and self._left > 0:
            self._left -= 1
            self._waiting.popleft()()
