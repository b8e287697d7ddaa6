"""The state that HTTP endpoints share: the service, the reader of bodies, the metrics and the known keys of
this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ..core.service import Service
from .body import BodyReader
from .metrics import Metrics
from .outcome import Listener
from .request_log import RequestLog
from .tenants import KeyRing
from .traces import Traces


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics
    keys: KeyRing
    traces: Traces | None = None
    listeners: Sequence[Listener] = ()
    """Functions that get the outcome of each request."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Functions to call when the server has answered its last request."""

    @classmethod
    def build(cls, service: Service) -> HttpService:
        keys = KeyRing(service.config.api_keys)
        service.engine.on_new_keys = keys.replace
        config = service.config
        traces = None
        listeners: list[Listener] = []
        if config.otlp_traces_endpoint is not None:
            traces = Traces.connect(config.otlp_traces_endpoint, config.served_model_name)
            listeners.append(traces.add)
        if config.log_requests is not None:
            tokenizer = service.tokenizer if config.log_texts else None
            listeners.append(RequestLog(config.log_requests, config.served_model_name, tokenizer).add)
        metrics = Metrics(service.memo, service.engine.directory)
        return cls(service, BodyReader(service.work), metrics, keys, traces, listeners)

    async def close(self) -> None:
        for close in self.closers:
            await close()
