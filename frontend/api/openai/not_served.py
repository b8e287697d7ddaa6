"""Paths of OpenAI's API that this server does not serve, with the reason."""

from __future__ import annotations

_STORED_CHATS = (
    "Send a chat by POST /v1/chat/completions. Its reply is not stored: to retrieve replies later, create "
    "responses by POST /v1/responses with store."
)
_ONLY_TEXT = "The model reads and writes only text: use a server with a model for it."

_METHODS = ("GET", "POST", "DELETE")
REASONS = {
    "/v1/chat/completions": _STORED_CHATS,
    "/v1/responses/compact": "This server shortens no conversation: shorten it in the client.",
    "/v1/moderations": "No model of this server moderates: use a model that does, by /v1/classify.",
    "/v1/audio": _ONLY_TEXT,
    "/v1/images": _ONLY_TEXT,
}
"""The reasons by path. A reason also holds for the paths below."""


def why_not_served(method: str, path: str) -> str | None:
    """The error's message for a request without a route; None if OpenAI's API has no such request."""
    found = next((each for each in REASONS if path == each or path.startswith(f"{each}/")), None)
    if found is None or method not in _METHODS:
        return None
    return f"{method} {path} is not served. {REASONS[found]}"
