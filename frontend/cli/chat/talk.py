"""A chat's state and its turns, without any input or output."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...language.api_client import ApiError, Piece, Usage
from .conversation import CommandError, CommandInterruptedError, Conversation
from .server import Model, Server

OnPiece = Callable[[Piece], None]
ENDINGS = {
    "interrupted": "interrupted; the conversation keeps what has arrived",
    "length": "the reply has reached its limit",
}
"""What to tell the reader about a reply's end, by its finish reason."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn that has ended. Times are seconds since the request was sent."""

    reply: str
    reasoning: str
    finish_reason: str | None
    """`interrupted` for a reply that the user stopped"""
    usage: Usage | None
    first_token_s: float | None
    seconds: float
    explanation: dict[str, Any] | None = msgspec.field(name="cache_explanation")

    @property
    def ending(self) -> str:
        """How the reply ended, in words; empty for a usual end."""
        return ENDINGS.get(self.finish_reason or "", "")

    @property
    def cached_share(self) -> float:
        """The share of the prompt's tokens that was cached, from 0 to 1."""
        return self.usage.cached_tokens / max(1, self.usage.prompt_tokens) if self.usage else 0.0


class Talk:
    """A conversation with one model of one server."""

    def __init__(self, server: Server, models: list[Model], system: str | None) -> None:
        self._server = server
        self.models = models
        self.conversation = Conversation(model=models[0].name, system=system)
        self.last: Turn | None = None

    @property
    def explains(self) -> bool:
        """Whether the server explains cache misses."""
        return any(each.is_arboras for each in self.models)

    def reset(self) -> None:
        """Forgets all turns. Settings stay."""
        self.conversation.messages = []
        self.last = None

    def change(
        self, command: str, changed: Conversation, fields: dict[str, Any], *, asks_any_server: bool = False
    ) -> None:
        """Continues with `changed`, whose new `fields` the server must take. Raises CommandError, and changes
        nothing, if it does not.

        Only Arbora is asked, unless `asks_any_server`, because others may refuse the request for another
        reason, such as its `max_tokens`.
        """
        if fields and (self.explains or asks_any_server):
            self._check(command, fields)
        self.conversation = changed

    def _check(self, command: str, fields: dict[str, Any]) -> None:
        """Asks the server for a reply with these fields, of one token unless they say otherwise, and ends the
        request at its first text. Raises CommandError if the server refuses it or the user interrupts it."""
        hello = [{"role": "user", "content": "Hello"}]
        stream = self._server.reply(self.conversation.model, hello, {"max_tokens": 1, **fields})
        try:
            for piece in stream:
                if piece.text or piece.reasoning:
                    break
        except ApiError as error:
            raise CommandError(
                f"{command}: the server did not take it, so nothing is changed: {error}"
            ) from None
        except KeyboardInterrupt:
            raise CommandInterruptedError(f"{command}: interrupted, so nothing is changed.") from None
        finally:
            stream.close()

    def say(self, text: str, on_piece: OnPiece) -> Turn:
        """Sends the user's text and returns the turn. Raises ApiError, and then forgets the text.

        A KeyboardInterrupt ends the reply; what has arrived of it stays in the conversation.
        """
        fields = {"stream_options": {"include_usage": True}, **self.conversation.fields()}
        if self.explains:
            fields["explain_cache"] = True
        pieces: list[Piece] = []
        first_token: float | None = None
        begun = time.monotonic()
        stream = self._server.reply(self.conversation.model, self.conversation.prompt(text), fields)
        interrupted = False
        try:
            for piece in stream:
                if first_token is None and (piece.text or piece.reasoning):
                    first_token = time.monotonic() - begun
                pieces.append(piece)
                on_piece(piece)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stream.close()  # ends the request
        reasons = [piece.finish_reason for piece in pieces if piece.finish_reason]
        if not reasons and not interrupted:
            raise ApiError("the stream ended without a finish reason")
        self.last = Turn(
            reply="".join(piece.text for piece in pieces),
            reasoning="".join(piece.reasoning for piece in pieces),
            finish_reason="interrupted" if interrupted else reasons[-1],
            usage=next((piece.usage for piece in pieces if piece.usage), None),
            first_token_s=first_token,
            seconds=round(time.monotonic() - begun, 4),
            explanation=next((piece.explanation for piece in pieces if piece.explanation), None),
        )
        if self.last.reply or not interrupted:
            self.conversation.add(text, self.last.reply)
        return self.last
