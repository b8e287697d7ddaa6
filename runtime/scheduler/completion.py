"""`complete_json`: a reply always has enough tokens left for its shortest end."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import Refused
from .forced_runs import ForcedTokenizer
from .request import Request


class Completion:
    """Applies to requests with `complete_json`. Other requests are never refused and can always end."""

    def __init__(self, tokenizer: ForcedTokenizer, eos_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_tokens = eos_tokens

    def find_refusal(self, request: Request) -> Refused | None:
        """Why the request's limit allows no complete reply; None if a complete reply fits."""
        if not request.sampling.complete_json:
            return None
        end, most = self.end(request), request.sampling.max_tokens
        if end is None:
            message = (
                "complete_json: the server doesn't know how to end a reply for this grammar. Leave "
                "complete_json out, or use a schema, regex or choice that compiles to an automaton."
            )
            return Refused(request.id, 400, message, "complete_json", "unsupported_value")
        if len(end) > most:
            message = (
                f"complete_json: the reply may have {most} tokens, but the shortest complete reply has "
                f"{len(end)} tokens. Raise max_tokens to that at least, or shorten the prompt if it leaves "
                "less context."
            )
            return Refused(request.id, 400, message, "max_tokens", "invalid_value")
        return None

    def can_end_after(self, request: Request, tokens: Sequence[int]) -> bool:
        """Whether the shortest end still fits after these tokens."""
        if not request.sampling.complete_json or self._eos_tokens.intersection(tokens):
            return True
        left = request.max_length - request.length - len(tokens)
        at_most = request.constraint.closing_bytes(tokens) if request.constraint else None
        if at_most is None or at_most <= left:  # a token has at least one byte, so it fits
            return True
        end = self.end(request, tokens)
        return end is None or len(end) <= left

    def end(self, request: Request, tokens: Sequence[int] = ()) -> Sequence[int] | None:
        """The shortest tokens that end the reply after `tokens`; None if those tokens are not known."""
        text = request.constraint.closing_text(tokens) if request.constraint else None
        return None if text is None else self._tokenizer.ending_tokens(text)
