"""The state that HTTP endpoints share: the service, the reader of bodies, the metrics and the known keys of
this process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...runtime.errors import RequestError
from ..core.replica.engine_client import EngineClient
from ..core.service import Service, unknown_model
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
    models: list[HttpService] = field(default_factory=list)
    """The services of all models of the server, which share all but `service`. The first one is that of
    requests that name no model."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Functions to call when the server has answered its last request."""

    @classmethod
    def build(cls, service: Service, *others: Service) -> HttpService:
        """Makes what the models share, and the service of the first one; `others` are the further models."""
        services = (service, *others)
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
            has_several = len(config.model_names) > 1 or config.adapter_places > 0 or bool(others)
            log = RequestLog(config.log_requests, config.served_model_name, has_several, tokenizer)
            listeners.append(log.add)
        metrics = Metrics(
            [each.memo for each in services],
            {each.config.served_model_name: each.engine.directory for each in services},
            config.vllm_metrics,
        )
        bodies, history = BodyReader(service.work), History(metrics)
        first = cls(service, bodies, metrics, keys, records, history, traces, log, listeners)
        first.models.extend([first, *(replace(first, service=other) for other in others)])
        return first

    def of(self, service: Service) -> HttpService:
        """The service of another model of the server."""
        return self if service is self.service else replace(self, service=service)

    def find_model(self, name: str | None) -> HttpService:
        """The service of the model of this name, which may have Ollama's tag `latest`. Raises a 404
        `RequestError` for an unknown name if there are several models, or the only one may not be loaded."""
        if not name or (len(self.models) == 1 and self.service.engine.use is None):
            return self.models[0]
        for each in self.models:
            if name in each.service.model_names:
                return each
        untagged = name.removesuffix(":latest")
        for each in self.models:
            if untagged in each.service.model_names:
                return each
        if self.service.config.any_model_name:
            return self.models[0]
        raise unknown_model(name, self.model_names)

    def check_responding(self) -> None:
        """Raises a 503 `RequestError` if no model would answer now, or the first one has not been loaded yet.
        A model that was unloaded answers, as a request loads it."""
        first, *others = self.engines
        if not first.knows_replica.is_set() or not any(each.would_respond for each in others):
            first.check_responding()

    @property
    def engines(self) -> list[EngineClient]:
        """The connections to the replicas of all models."""
        return [each.service.engine for each in self.models]

    @property
    def model_names(self) -> list[str]:
        """The names of all models, and of their adapters."""
        return [name for each in self.models for name in each.service.model_names]

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
