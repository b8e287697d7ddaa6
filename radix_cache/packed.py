"""Token sequences packed as little-endian int32, compared with memcmp."""

from __future__ import annotations

TOKEN_BYTES = 4
KEY_BYTES = 16  # length of a page key (page_keys.py)
_WORD_BYTES = 64


def common_bytes(left: bytes, right: bytes) -> int:
    """Length in bytes of the longest common prefix of `left` and `right`."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > _WORD_BYTES:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    difference = int.from_bytes(left[low:high], "little") ^ int.from_bytes(right[low:high], "little")
    return low + ((difference & -difference).bit_length() - 1) // 8


def split_keys(keys: bytes) -> list[bytes]:
    """Splits concatenated page keys."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def common_tokens(left: bytes, right: bytes) -> int:
    """Number of leading tokens that two packed sequences share."""
    return common_bytes(left, right) // TOKEN_BYTES
