"""The state that HTTP endpoints share: the service, the reader of bodies, the metrics and the known keys of
this process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...runtime.errors import RequestError
from ..core.service import Service
from .body import BodyReader
from .history import History
from .metrics import Metrics
from .outcome import Listener, Outcome
from .request_log import RequestLog
from .request_records import RequestRecords
from .tenants import KeyRing
from .traces import Traces


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics
    keys: KeyRing
    records: RequestRecords
    history: History
    traces: Traces | None = None
    log: RequestLog | None = None
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
        records = RequestRecords(config.served_model_name)
        service.engine.read_records = records.encode
        listeners: list[Listener] = [records.add]
        if config.otlp_traces_endpoint is not None:
            traces = Traces.connect(config.otlp_traces_endpoint, config.served_model_name)
            listeners.append(traces.add)
        log = None
        if config.log_requests is not None:
            tokenizer = service.tokenizer if config.log_texts else None
            has_several = len(config.model_names) > 1 or config.adapter_places > 0
            log = RequestLog(config.log_requests, config.served_model_name, has_several, tokenizer)
            listeners.append(log.add)
        metrics = Metrics(service.memo, service.engine.directory)
        bodies, history = BodyReader(service.work), History(metrics)
        return cls(service, bodies, metrics, keys, records, history, traces, log, listeners)

    def log_refusal(
        self,
        method: str,
        path: str,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        error: RequestError,
    ) -> None:
        """Logs and keeps the refusal of a request that the application does not see."""
        id = dict(headers).get(b"x-request-id", b"").decode("latin-1")
        outcome = Outcome(method, path, id, status, None, error, time.time(), 0.0)
        self.records.keep("", outcome)
        if self.log is not None:
            self.log.write(outcome)

    async def close(self) -> None:
        for close in self.closers:
            await close()
        if self.log is not None:
            self.log.end_second()
