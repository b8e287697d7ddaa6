"""llguidance over single bytes: another engine for JSON schemas, which says yes or no to whole texts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

END = 256
COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class _Bytes:
    """A vocabulary of single bytes."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=END + 1)


class Peer:
    """Follows one schema. `error` is empty if llguidance takes the schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        grammar = LLMatcher.grammar_from_json_schema({**schema, "x-guidance": COMPACT})
        self._matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
        self._mask = np.zeros(-(-(END + 1) // 32), np.int32)
        self.error = self._matcher.get_error()

    def accepts(self, text: bytes) -> bool:
        self._matcher.reset()
        return self._matcher.try_consume_tokens(list(text)) == len(text) and self._matcher.is_accepting()

    def walked(self, chance: random.Random, length: int) -> bytes | None:
        """A random text that begins to close after `length` bytes; None if it does not end."""
        self._matcher.reset()
        text = bytearray()
        while len(text) < 20 * (length + 20):
            allowed = self._allowed()
            plain = [byte for byte in allowed if byte != END]
            if not plain or (END in allowed and (len(text) >= length or chance.random() < 0.3)):
                return bytes(text) if self._matcher.is_accepting() else None
            closing = [byte for byte in b'"]}' if byte in plain]
            byte = chance.choice(closing if closing and len(text) >= length else plain)
            self._matcher.consume_token(byte)
            text.append(byte)
        return None

    def _allowed(self) -> list[int]:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: END + 1]
        return np.flatnonzero(bits).tolist()
