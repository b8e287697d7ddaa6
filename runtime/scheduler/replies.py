"""Messages to the tokenizer processes, gathered until the loop sends them."""

from __future__ import annotations

from collections import defaultdict

from ..messages import (
    TOKEN_BYTES,
    DraftCounts,
    FinishReason,
    Logprobs,
    Message,
    Output,
    Outputs,
    ReplyError,
    Tokens,
)
from .request import Request


class Replies:
    """Each step's outputs go to a client as one `Outputs`, in order with its other messages."""

    def __init__(self) -> None:
        self._messages: dict[int, list[Message]] = defaultdict(list)
        self._outputs: dict[int, list[Output]] = defaultdict(list)

    def add(self, client: int, message: Message) -> None:
        self._messages[client].append(message)

    def add_tokens(self, request: Request, logprobs: Logprobs | None, finish: FinishReason | None) -> None:
        """Sends the tokens not sent yet. If `finish` is "stop", the last token ended the reply."""
        stop_token = request.last_token if finish == "stop" else None
        self._put(request, Output(request.id, _unsent(request), logprobs, finish, stop_token))

    def end(self, request: Request, finish: FinishReason, error: ReplyError | None = None) -> None:
        """Ends the reply without a newly sampled token."""
        self._put(request, Output(request.id, _unsent(request), finish=finish, error=error))

    def _put(self, request: Request, output: Output) -> None:
        if not request.has_replied:
            request.has_replied = True
            output.cached_tokens, output.queued_s = request.cached_tokens, request.queued_s
            output.vector = request.vector
            if request.prompt_logprobs:
                output.prompt_logprobs = join_logprobs(request.prompt_logprobs)
                request.prompt_logprobs = []
        output.prediction, request.predicted = request.predicted, None
        if request.has_drafts and request.drafts.steps:
            output.drafts, request.drafts = request.drafts, DraftCounts()
        self._outputs[request.client].append(output)

    def drop_client(self, client: int) -> None:
        self._messages.pop(client, None)
        self._outputs.pop(client, None)

    def close_step(self) -> None:
        """Joins the outputs since the last step into one message for each client."""
        for client, outputs in self._outputs.items():
            self._messages[client].append(Outputs(outputs))
        self._outputs = defaultdict(list)

    def take(self) -> dict[int, list[Message]]:
        messages, self._messages = self._messages, defaultdict(list)
        return messages


def _unsent(request: Request) -> Tokens:
    """Returns the tokens not sent yet, and counts them as sent."""
    start, request.sent = request.sent, request.length
    return request.slice(start, request.length)


def join_logprobs(parts: list[Logprobs]) -> Logprobs:
    return Logprobs(
        b"".join(part.chosen for part in parts),
        b"".join(part.top_ids for part in parts),
        b"".join(part.top_values for part in parts),
    )


def find_ending(request: Request, eos_tokens: frozenset[int]) -> FinishReason | None:
    """Why the request's newest token ends its reply; None if it does not."""
    sampling, token = request.sampling, request.last_token
    if token in sampling.stop_token_ids:
        return "stop"
    if token in eos_tokens and (not sampling.ignore_eos or request.constraint is not None):
        return "stop"
    return "length" if request.length >= request.max_length else None


def list_banned_tokens(request: Request, eos_tokens: frozenset[int]) -> Tokens:
    """Tokens that would end the reply, packed; they may not be sampled before `min_tokens`."""
    banned = set(request.sampling.stop_token_ids)
    if not request.sampling.ignore_eos:
        banned |= eos_tokens
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in sorted(banned))
