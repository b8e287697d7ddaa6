"""The state that HTTP endpoints share: the service, the reader of bodies, the metrics and the known keys of
this process."""

from __future__ import annotations

from dataclasses import dataclass

from ..keys.key_ring import KeyRing
from ..request.service import Service
from .body import BodyReader
from .metrics import Metrics


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics
    keys: KeyRing

    @classmethod
    def of(cls, service: Service) -> HttpService:
        keys = KeyRing(service.config.api_keys)
        service.engine.on_new_keys = keys.replace
        return cls(service, BodyReader(service.work), Metrics(service.memo, service.engine.directory), keys)
