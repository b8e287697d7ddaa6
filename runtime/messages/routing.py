"""Tokenizer ↔ scheduler, where several replicas serve: what each has in its tree and still to compute."""

from __future__ import annotations

from .base import Message, Part, Tokens


class WatchReplica(Message):
    """Send reports to this tokenizer process from now on, the whole tree first."""

    client: int


class TreeChange(Part):
    """Full pages that the tree has got, with their tokens, or has lost, without.

    Pages that it has got follow page `after`, or begin a sequence of the namespace if `after` is -1. No page
    is lost before those that follow it.
    """

    pages: bytes  # packed ids
    tokens: Tokens = b""
    after: int = -1
    namespace: str = ""


class Load(Part):
    """The work that a replica has, in seconds of its time."""

    backlog_s: float = 0.0  # until a prompt that comes now would be computed, and the open replies
    token_s: float | None = None  # for each token of a prompt; None before some were computed
    step_s: float = 0.0  # for a step that only decodes; 0 while no reply is decoded


class ReplicaReport(Message):
    """What has changed since the report before, whose `sequence` is one lower. With `is_whole`, all pages of
    the tree: what was known before is void."""

    sequence: int
    load: Load
    changes: list[TreeChange] = []
    is_whole: bool = False
