"""The order of a batch's lines: lines whose prompts begin alike run one after another."""

from __future__ import annotations

from zlib import crc32

import msgspec
from msgspec import MsgspecError, Raw

CHUNK_BYTES = 256
HASH_BYTES = 4
MOST_CHUNKS = 4096  # of a prompt, so a key has 16 KiB at most
# The fields that a prompt is rendered from, in the order in which they stand in it.
_PROMPT_FIELDS = ("cache_salt", "tools", "system", "instructions", "messages", "input", "prompt")


def prefix_key(fields: dict[str, Raw]) -> bytes:
    """A sort key of a request's body: the longer two prompts are alike from the start, the closer they sort.

    It has a hash for each chunk of the prompt's JSON. Sorting by the text itself would need the whole file in
    memory, and rendering and tokenizing would take as long as an API request each.
    """
    text = bytearray()
    for name in _PROMPT_FIELDS:
        if name in fields:
            text += _canonical(fields[name])
        text += b"\0"
    end = min(len(text), MOST_CHUNKS * CHUNK_BYTES)
    return b"".join(
        crc32(text[start : start + CHUNK_BYTES]).to_bytes(HASH_BYTES, "big")
        for start in range(0, end, CHUNK_BYTES)
    )


def _canonical(value: Raw) -> bytes:
    """The JSON with sorted names and without spaces, so that a chat's texts begin at the same place."""
    try:
        return msgspec.json.encode(msgspec.json.decode(value), order="sorted")
    except (MsgspecError, RecursionError):
        return bytes(value)
