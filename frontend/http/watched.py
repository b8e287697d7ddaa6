"""Adds the request log and the traces to an application."""

from __future__ import annotations

from starlette.types import ASGIApp

from .http_service import HttpService
from .request_log import RequestLog
from .traces import Traced


def watched(app: ASGIApp, http: HttpService) -> ASGIApp:
    """The application with the log of its requests and their traces, as far as they are configured."""
    config = http.service.config
    if http.traces is not None:
        app = Traced(app, http.traces)
    if config.log_requests is not None:
        tokenizer = http.service.tokenizer if config.log_texts else None
        app = RequestLog(app, config.log_requests, config.served_model_name, tokenizer)
    return app
