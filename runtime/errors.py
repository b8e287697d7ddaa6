"""Errors that are the user's to mend, with the way back to them."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting or a model that can't be used. The message names it, what was found and what would do."""


class RequestError(ValueError):
    """A request that can't be served, in the words of OpenAI's error object.

    `status` is the HTTP status, `param` the field at fault, `code` a stable word for programs.
    `retry_after` is in how many seconds the same request may succeed, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
