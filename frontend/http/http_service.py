"""The state that HTTP endpoints share: the service, the reader of bodies and the metrics of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..request.service import Service
from .body import BodyReader
from .metrics import Metrics


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """called when the server has answered its last request"""

    @classmethod
    def of(cls, service: Service) -> HttpService:
        return cls(service, BodyReader(service.work), Metrics(service.memo))

    async def close(self) -> None:
        for close in self.closers:
            await close()
