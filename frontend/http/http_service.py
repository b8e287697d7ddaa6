"""The state that HTTP endpoints share: the service, the reader of bodies, the metrics and the known keys of
this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..core.service import Service
from .body import BodyReader
from .keys.key_ring import KeyRing
from .metrics import Metrics
from .traces import Traces


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics
    keys: KeyRing
    traces: Traces | None = None
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """called when the server has answered its last request"""

    @classmethod
    def of(cls, service: Service) -> HttpService:
        keys = KeyRing(service.config.api_keys)
        service.engine.on_new_keys = keys.replace
        config = service.config
        traces = None
        if config.otlp_traces_endpoint is not None:
            traces = Traces.to(config.otlp_traces_endpoint, config.served_model_name)
        return cls(
            service, BodyReader(service.work), Metrics(service.memo, service.engine.directory), keys, traces
        )

    async def close(self) -> None:
        for close in self.closers:
            await close()
