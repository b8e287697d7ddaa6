"""Replies that shall be whole when `max_tokens` ends them: there is always room left for the shortest end."""

from __future__ import annotations

from ...grammars import ForcedText
from ..messages import Refused
from .forced_runs import SureTokens
from .request import Request


class Completion:
    """Of requests with `complete_json`."""

    def __init__(self, sure_tokens: SureTokens, eos_tokens: frozenset[int]) -> None:
        self._sure_tokens = sure_tokens
        self._eos_tokens = eos_tokens

    def refusal(self, request: Request) -> Refused | None:
        """Why the request can't be kept whole within its limit, if so."""
        if not request.sampling.complete_json:
            return None
        end, most = self.end(request), request.sampling.max_tokens
        if end is None:
            message = "complete_json: how a reply could be ended isn't known for this grammar."
            return Refused(request.id, 400, message, "complete_json", "unsupported_value")
        if len(end) > most:
            message = (
                f"max_tokens is {most}, but the shortest reply that fits the grammar has {len(end)} tokens."
            )
            return Refused(request.id, 400, message, "max_tokens", "invalid_value")
        return None

    def instead_of(self, request: Request, token: int) -> list[int] | None:
        """What ends the reply in place of the sampled `token`, if behind that there is no room to end it."""
        if not request.sampling.complete_json or token in self._eos_tokens:
            return None
        end = self.end(request, token)
        if end is None or len(end) < request.max_length - request.length:
            return None
        return self.end(request)

    def end(self, request: Request, token: int | None = None) -> list[int] | None:
        """The tokens of the shortest text that ends the reply, behind `token`; None if that isn't known."""
        text = request.constraint.closing_text(token) if request.constraint else None
        if text is None:
            return None
        tokens = self._sure_tokens(ForcedText(text, b"", True))
        own = [token for token in tokens if token not in self._eos_tokens]
        return own if own or not text else None
