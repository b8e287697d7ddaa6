"""The error with which a running server ends by itself."""

from __future__ import annotations


class ServerError(RuntimeError):
    """The server can't start or can't go on. The message is for the user, with the child's last lines."""
