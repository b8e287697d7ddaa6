"""Special tokens that a structural tag names in its texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class SpecialTokens(NamedTuple):
    """The bytes that stand for each special token in automata, by the token's name."""

    bytes_of_name: Mapping[str, bytes]

    def bytes_of(self, text: str) -> bytes:
        """The bytes of a text, in which the longest names of special tokens stand for the tokens."""
        names = sorted((name for name in self.bytes_of_name if name in text), key=len, reverse=True)
        if not names:
            return text.encode()
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return b"".join(self.bytes_of_name.get(part, part.encode()) for part in parts)
