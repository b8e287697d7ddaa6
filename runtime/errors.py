"""Errors that the user can fix. Their messages say how."""

from __future__ import annotations

from .api_keys import Allowances


class ConfigError(ValueError):
    """A setting or model that cannot be used. The message names it, and the found and the expected value."""


class RequestError(ValueError):
    """A request that cannot be served, with the fields of OpenAI's error object.

    status: the HTTP status
    param: the field at fault
    code: a stable word for programs
    retry_after: seconds until the same request may succeed, if known
    allowances: what is left to its API key, if that has limits
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        allowances: Allowances | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.allowances = allowances
