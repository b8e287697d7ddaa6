"""The errors with which a server ends by itself."""

from __future__ import annotations

from ...runtime.errors import ConfigError


class ServerError(RuntimeError):
    """The server can't start or can't go on. The message is for the user, with the child's last lines."""


class CannotStartError(ServerError, ConfigError):
    """A child refuses to start because an option or the model can't be used."""
