"""The objects that the endpoints of the Responses API share."""

from __future__ import annotations

from dataclasses import dataclass

from ....runtime.errors import RequestError
from ...http.http_service import HttpService
from .background import Background
from .response_store import ResponseStore


@dataclass(frozen=True)
class ResponsesService:
    """State of the endpoints. `stored` and `background` are None on a server that stores nothing."""

    http: HttpService
    stored: ResponseStore | None
    background: Background | None

    @classmethod
    def of(cls, http: HttpService) -> ResponsesService:
        config = http.service.config
        if config.data_dir is None:
            return cls(http, None, None)
        store = ResponseStore(config.data_dir, config.data_size)
        background = Background(http, store)
        http.closers.append(background.close)
        return cls(http, store, background)

    def store(self, param: str | None = None) -> ResponseStore:
        """The store. Raises a 400 `RequestError` naming `param` on a server that stores nothing."""
        if self.stored is None:
            raise nothing_stored(param)
        return self.stored


def nothing_stored(param: str | None) -> RequestError:
    subject = "This" if param is None else f"{param} needs stored responses, but this"
    return RequestError(
        f"{subject} server stores no responses (--data-dir off): send the whole conversation as input, with "
        "the output items of earlier responses in it.",
        param=param,
        code="nothing_stored",
    )
