"""Server-sent events. What is the same in every chunk of a stream is encoded once."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from .protocol import StreamOptions
from .responses import UnenforcedKeyword, Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class _Told(Struct, kw_only=True):
    usage: Usage | UnsetType
    unenforced: list[UnenforcedKeyword] | UnsetType


def _finish(reason: str, stopped_by: str | int | None) -> bytes:
    return _encode(reason) + b',"stop_reason":' + _encode(stopped_by) + b"}"


class ChunkWriter:
    """Chunks of one stream: `{"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}`.

    With `include_usage` every chunk has a usage: null in all but the last, or what is used so far
    with vLLM's `continuous_usage_stats`, which is what `continuous` says.
    """

    def __init__(
        self,
        *,
        kind: str,
        request_id: str,
        created: int,
        model: str,
        fingerprint: str,
        options: StreamOptions | None,
    ) -> None:
        head: dict[str, str | int] = {"id": request_id, "object": kind, "created": created, "model": model}
        head["system_fingerprint"] = fingerprint
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._include_usage = options is not None and bool(options.include_usage)
        self.continuous = self._include_usage and options is not None and bool(options.continuous_usage_stats)
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"

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
        """`payload` is the choice's own member, such as `"delta":{…}`; `stop_reason` goes with `finish`."""
        return b"".join(
            (
                self._head,
                b'{"index":%d,' % index,
                payload,
                b',"logprobs":',
                b"null" if logprobs is None else _encode(logprobs),
                b',"finish_reason":',
                b"null}" if finish is None else _finish(finish, stop_reason),
                self._tail if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n",
            )
        )

    def end(self, usage: Usage, unenforced: list[UnenforcedKeyword] | UnsetType) -> bytes:
        """The last chunk, without choices, if there is something to tell beside them."""
        if not self._include_usage and unenforced is UNSET:
            return DONE
        told = _Told(usage=usage if self._include_usage else UNSET, unenforced=unenforced)
        return self._head + b"]," + _encode(told)[1:] + b"\n\n" + DONE
