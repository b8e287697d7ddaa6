"""A body is found in the bytes of its connection, however they are split, and so is what follows it."""

from __future__ import annotations

import pytest
from arbora.frontend.http.server.limits import Limits
from arbora.frontend.http.server.request_body import MAX_FRAMING_BYTES, RequestBody
from arbora.runtime.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

NEXT = b"GET / HTTP/1.1\r\n"
CHUNK = st.tuples(st.binary(min_size=1, max_size=20), st.sampled_from([b"", b";a", b';a="b;c"', b" ;x=y"]))


def body_in_chunks(chunks: list[tuple[bytes, bytes]], trailers: bytes) -> bytes:
    parts = [b"%x%b\r\n%b\r\n" % (len(data), extension, data) for data, extension in chunks]
    return b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


def read(body: RequestBody, sent: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """The body and the bytes after it, if `sent` comes in pieces that end at `cuts`."""
    taken, ends = b"", sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)})
    start = 0
    for end in ends:
        piece, rest = body.take(sent[start:end])
        taken += piece
        if body.is_complete:
            return taken, rest + sent[end:]
        assert rest == b""
        start = end
    raise AssertionError("the body does not end")


@given(st.lists(CHUNK), st.sampled_from([b"", b"X: y\r\n"]), st.lists(st.integers(0, 200)))
def test_a_body_in_chunks(chunks: list[tuple[bytes, bytes]], trailers: bytes, cuts: list[int]) -> None:
    body = RequestBody(None, Limits(), 0, is_upload=False)
    sent = body_in_chunks(chunks, trailers) + NEXT
    assert read(body, sent, cuts) == (b"".join(data for data, _ in chunks), NEXT)


@given(st.binary(min_size=1), st.lists(st.integers(0, 200)))
def test_a_body_with_a_length(data: bytes, cuts: list[int]) -> None:
    body = RequestBody(len(data), Limits(), 0, is_upload=False)
    assert read(body, data + NEXT, cuts) == (data, NEXT)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n",
        b"zz\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1 1\r\na\r\n",
        b"1\na\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1;\x00\r\na\r\n",
        b"f" * 17 + b"\r\n",
        b"0\r\nno colon\r\n",
        b"0\r\nX: y\n",
        b"0\r\n" + b"X: y\r\n" * MAX_FRAMING_BYTES,
        b"1;" + b"x" * MAX_FRAMING_BYTES,
        b"1;" + b"x" * 2 * MAX_FRAMING_BYTES + b"\r\na\r\n0\r\n\r\n",
    ],
)
def test_chunks_that_are_not_as_http_says_are_refused(sent: bytes) -> None:
    body = RequestBody(None, Limits(), 0, is_upload=False)
    with pytest.raises(RequestError) as raised:
        body.take(sent)
    assert raised.value.code == "invalid_http"
