"""Writes server-sent events. The part that all chunks of a stream share is encoded once."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.cache_misses.explanation import Explanation
from ...core.prepare import Job
from ...core.reply import Reply, UnenforcedKeyword
from .protocol import StreamOptions
from .responses import Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class Head(NamedTuple):
    """The first fields of all answers to a request. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def of(cls, job: Job) -> Head:
        return cls(job.id, job.created, job.model, job.service.fingerprint)


class _Ending(Struct, kw_only=True):
    usage: Usage | UnsetType
    unenforced: list[UnenforcedKeyword] | UnsetType
    cache_explanation: Explanation | UnsetType


def _finish(reason: str, stopped_by: str | int | None) -> bytes:
    return _encode(reason) + b',"stop_reason":' + _encode(stopped_by) + b"}"


class ChunkWriter:
    """Chunks of one stream: `{"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}`.

    With `include_usage` every chunk has a usage. It is null except in the last chunk, unless `continuous`
    (vLLM's `continuous_usage_stats`) adds the usage so far to each.
    """

    def __init__(self, kind: str, head: Head, options: StreamOptions | None) -> None:
        fields = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
        fields["system_fingerprint"] = head.system_fingerprint
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._choice = self._head + b'{"index":'
        self._include_usage = options is not None and bool(options.include_usage)
        self.continuous = self._include_usage and options is not None and bool(options.continuous_usage_stats)
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        self._open_tail = b',"logprobs":null,"finish_reason":null}' + self._tail

    def choice(
        self,
        index: int,
        payload: bytes,
        *,
        logprobs: object = None,
        finish: str | None = None,
        stop_reason: str | int | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """A choice's chunk. `payload` is its own member, such as `"delta":{…}`. `stop_reason` needs
        `finish`."""
        if logprobs is None and finish is None and usage is None:
            return b"%b%d,%b%b" % (self._choice, index, payload, self._open_tail)
        return b"".join(
            (
                b"%b%d," % (self._choice, index),
                payload,
                b',"logprobs":',
                b"null" if logprobs is None else _encode(logprobs),
                b',"finish_reason":',
                b"null}" if finish is None else _finish(finish, stop_reason),
                self._tail if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n",
            )
        )

    def around(self, index: int, start: bytes, end: bytes) -> tuple[bytes, bytes]:
        """The bytes before and after the text in `choice(index, start + text + end)`."""
        return b"%b%d,%b" % (self._choice, index, start), end + self._open_tail

    def end(self, usage: Usage, reply: Reply) -> bytes:
        """The last bytes: `[DONE]`, after a chunk without choices if a usage, unenforced keywords or an
        explanation must be reported."""
        unenforced, explanation = reply.unenforced(), reply.explanation
        if not self._include_usage and not unenforced and explanation is None:
            return DONE
        ending = _Ending(
            usage=usage if self._include_usage else UNSET,
            unenforced=unenforced or UNSET,
            cache_explanation=explanation or UNSET,
        )
        return self._head + b"]," + _encode(ending)[1:] + b"\n\n" + DONE
