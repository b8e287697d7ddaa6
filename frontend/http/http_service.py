"""The state that HTTP endpoints share: the service, the reader of bodies and the metrics of this process."""

from __future__ import annotations

from dataclasses import dataclass

from ..request.service import Service
from .body import BodyReader
from .metrics import Metrics


@dataclass(frozen=True)
class HttpService:
    service: Service
    bodies: BodyReader
    metrics: Metrics

    @classmethod
    def of(cls, service: Service) -> HttpService:
        return cls(service, BodyReader(service.work), Metrics(service.memo))
