"""Tokenizer ↔ tokenizer, where several processes serve HTTP: what each remembers of prompts, and the records
of ended requests."""

from __future__ import annotations

from .base import Message, Tokens


class RememberReply(Message):
    """The sampled ids of a reply, which the process that gets the conversation's next turn needs."""

    namespace: str
    prompt_text: str
    prompt: Tokens
    reply_text: str
    reply: Tokens


class ForgetPrompts(Message):
    """Forget `namespace`, or all namespaces whose names begin with `scope`."""

    scope: str
    namespace: str | None


class QueryRecords(Message):
    """Send the records of the requests of an API key, by its hash; None: of all requests."""

    client: int
    query: int
    owner: str | None


class RecordList(Message):
    query: int
    records: bytes  # JSON
