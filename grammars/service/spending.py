"""The recent compile time of each tenant; tenants with slow grammars wait behind the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

HALF_LIFE_S = 30.0
HEAVY_S = 1.0  # of recent compiling: usual schemas never take so long, hostile ones do at once
LEAD = 4.0  # seconds of delay for each second of the tenant's recent compiling
LONGEST_LEAD_S = 60.0
_FORGET_AT = 1024  # tenants


class Spending:
    """The seconds of compiling of each tenant, with a half-life of half a minute. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._spent: dict[str, tuple[float, float]] = {}  # seconds, and when they were counted

    def add(self, tenant: str, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            self._spent[tenant] = self._left(tenant, now) + seconds, now
            if len(self._spent) > _FORGET_AT:
                least = min(self._spent, key=lambda name: self._left(name, now))
                del self._spent[least]

    def of(self, tenant: str) -> float:
        with self._lock:
            return self._left(tenant, self._clock())

    def is_heavy(self, tenant: str) -> bool:
        return self.of(tenant) > HEAVY_S

    def lead(self, tenant: str) -> float:
        """The delay of the tenant's grammars, in seconds."""
        return min(LEAD * self.of(tenant), LONGEST_LEAD_S)

    def _left(self, tenant: str, now: float) -> float:
        seconds, then = self._spent.get(tenant, (0.0, now))
        return float(seconds * 0.5 ** ((now - then) / HALF_LIFE_S))
