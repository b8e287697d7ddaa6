"""Which ids a text came from, so that a conversation's next turn is the very tokens of the last.

A reply's text, encoded again, need not give the ids that the model sampled. The memo remembers
them: rendered text is cut at special tokens, and each piece maps to its ids.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

import numpy as np

from ...runtime.messages import Tokens
from .cut_points import CutPoints
from .tokenizer import Tokenizer

_ENTRY_OVERHEAD = 256  # bytes that an entry needs besides its text and ids


class PromptMemo:
    """Holds at most `max_bytes`; the least recently used pieces leave first. Safe to use from threads.

    `hits` and `misses` count pieces of text between special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, max_bytes: int = 64 << 20) -> None:
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._cuts = CutPoints(tokenizer)
        self._cut_ids = np.array(sorted(self._cuts.ids.values()), np.int32)
        self._tokens_of: OrderedDict[str, Tokens] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def enabled(self) -> bool:
        """False if no text can be cut without changing its ids; then every text is tokenized whole."""
        return len(self._cut_ids) > 0

    @property
    def bytes_used(self) -> int:
        return self._bytes

    def encode(self, text: str) -> Tokens:
        """The ids of a rendered prompt. Special tokens in it are found, none are added."""
        if not self.enabled:
            return self._tokenizer.encode(text, add_special_tokens=False)
        first, *inner = self._cuts.split(text)
        parts = [self._tokenizer.encode(first.text, add_special_tokens=False)] if first.text else []
        cut = first.cut
        for split in inner:
            assert cut is not None
            parts.append(cut.to_bytes(4, "little"))
            if split.text:
                parts.append(self._encode_piece(split.text))
            cut = split.cut
        return b"".join(parts)

    def remember(
        self, prompt_text: str, prompt_tokens: Tokens, reply_text: str, reply_tokens: Tokens
    ) -> None:
        """Keeps the ids of a reply, unless no whole number of them gives exactly `reply_text`.

        `reply_text` is all that the detokenizer returned, special tokens shown or not;
        `prompt_tokens` is what `encode(prompt_text)` gave.
        """
        tokens = np.frombuffer(reply_tokens, "<i4")
        kept = self._whole_tokens(tokens, reply_text.encode())
        if not self.enabled or not kept:
            return
        prompt = np.frombuffer(prompt_tokens, "<i4")
        cuts = np.flatnonzero(np.isin(prompt, self._cut_ids))
        if not len(cuts):
            return
        last_piece = self._cuts.split(prompt_text)[-1].text
        ids = np.concatenate([prompt[cuts[-1] + 1 :], tokens[:kept]])
        start_of_reply = len(prompt) - int(cuts[-1]) - 1
        ends = [*np.flatnonzero(np.isin(ids, self._cut_ids)).tolist(), len(ids)]
        start = 0
        for end in ends:
            piece = ids[start:end]
            reply = self._bytes_of(piece[max(start_of_reply - start, 0) :])
            self._remember_piece((last_piece if start == 0 else "").encode() + reply, piece)
            start = end + 1

    def _whole_tokens(self, tokens: np.ndarray, text: bytes) -> int:
        """How many of the tokens give exactly `text`; 0 if no number does."""
        for skipped in (self._tokenizer.special_tokens, frozenset[int]()):
            parts = [
                b"" if token in skipped else self._tokenizer.token_bytes(token) for token in tokens.tolist()
            ]
            length = 0
            for count, part in enumerate(parts, 1):
                length += len(part)
                if length >= len(text):
                    if length == len(text) and b"".join(parts[:count]) == text:
                        return count
                    break
        return 0

    def _bytes_of(self, tokens: np.ndarray) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, tokens.tolist()))

    def _remember_piece(self, data: bytes, ids: np.ndarray) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return
        if text and len(self._cuts.split(text)) == 1:
            self._put(text, ids.astype("<i4").tobytes())

    def _encode_piece(self, text: str) -> Tokens:
        with self._lock:
            tokens = self._tokens_of.get(text)
            if tokens is not None:
                self._tokens_of.move_to_end(text)
                self.hits += 1
                return tokens
            self.misses += 1
        tokens = self._cuts.encode_inner(text)
        self._put(text, tokens)
        return tokens

    def _put(self, text: str, tokens: Tokens) -> None:
        with self._lock:
            replaced = self._tokens_of.pop(text, None)
            if replaced is not None:
                self._bytes -= _cost(text, replaced)
            self._tokens_of[text] = tokens
            self._bytes += _cost(text, tokens)
            while self._bytes > self._max_bytes:
                oldest = self._tokens_of.popitem(last=False)
                self._bytes -= _cost(*oldest)


def _cost(text: str, tokens: Tokens) -> int:
    return sys.getsizeof(text) + len(tokens) + _ENTRY_OVERHEAD
