"""OpenTelemetry traces of requests that generate text. Needs the extra `otel`.

A request's span is made when it has ended, and exported by a thread of OpenTelemetry's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from .outcome import Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_MS = 2000  # milliseconds for exporting the last spans when the process ends
_TEXT_PATHS = ("/v1/completions", "/api/generate", "/generate", "/generate/socket")
_CARRIED = (b"traceparent", b"tracestate")  # the headers of W3C's trace context


class Traces:
    """Makes spans. The packages are imported only here: a server without traces does not load them."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("arbora")
        self._context = TraceContextTextMapPropagator()
        self._model = model

    @classmethod
    def connect(cls, endpoint: str, model: str) -> Traces:
        """Traces that go to the collector at a URL."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource({"service.name": "arbora"}).merge(Resource.create())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider, model)

    def add(self, scope: Scope, outcome: Outcome) -> None:
        """Makes the span of a request that has ended. Its headers may have the client's trace context."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        timer = outcome.timer
        if timer is None:
            return
        headers = dict(scope["headers"])
        carrier = {name.decode(): headers[name].decode("latin-1") for name in _CARRIED if name in headers}
        operation = _name_operation(outcome)
        started_at = outcome.ended_at - outcome.seconds
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._context.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_list_attributes(outcome, operation, self._model),
            start_time=_ns(started_at),
        )
        if timer.first_token_s is not None:
            if timer.queued_s is not None:
                span.add_event(
                    "prefill", timestamp=_ns(started_at + min(timer.queued_s, timer.first_token_s))
                )
            span.add_event("decode", timestamp=_ns(started_at + timer.first_token_s))
        if outcome.code is not None or outcome.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(outcome.ended_at))

    def flush(self) -> None:
        """Exports the spans that wait, within `FLUSH_MS`."""
        self._provider.force_flush(FLUSH_MS)


def _name_operation(outcome: Outcome) -> str:
    """The operation in OpenTelemetry's words."""
    is_chat = outcome.path not in _TEXT_PATHS if outcome.is_chat is None else outcome.is_chat
    return "chat" if is_chat else "text_completion"


def _list_attributes(outcome: Outcome, operation: str, model: str) -> dict[str, Any]:
    """Attributes by OpenTelemetry's conventions for HTTP and generative AI; times as in vLLM's traces."""
    timer = outcome.timer
    assert timer is not None, "a request that generates nothing has no span"
    usage, sampling = timer.usage, timer.sampling
    attributes = {
        "http.request.method": outcome.method,
        "http.response.status_code": outcome.status or None,
        "url.path": outcome.path,
        "error.type": outcome.code,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "arbora",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": outcome.id or None,
        "gen_ai.response.finish_reasons": timer.ends or None,
        "gen_ai.request.max_tokens": None if sampling is None else sampling.max_tokens,
        "gen_ai.request.temperature": None if sampling is None else sampling.temperature,
        "gen_ai.request.top_p": None if sampling is None else sampling.top_p,
        "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": None if usage is None else usage.cached_tokens,
        "gen_ai.latency.time_in_queue": timer.queued_s,
        "gen_ai.latency.time_to_first_token": timer.first_token_s,
        "gen_ai.latency.e2e": outcome.seconds,
        "arbora.api_key": outcome.key,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
