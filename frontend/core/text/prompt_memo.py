"""Remembers the ids of earlier prompts and replies, so that a conversation's next turn begins with the same
tokens.

Encoding a reply's text again may give other ids than the model sampled. The memo stores the sampled ids with
the whole text before them, and tokenizes only the text after the longest known beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ....runtime.messages import Tokens
from ..work.thread_pool import Steps, run_now
from .control_texts import ControlTexts
from .cut_points import CutPoints
from .long_texts import LongTexts, TooLongError
from .prompt_tree import Place, PromptTree
from .reply_text import find_whole_tokens, guard_as_sent_back
from .tokenized_text import Cut, TokenizedText, common_length, move_cuts
from .tokenizer import Tokenizer

# At ten bytes per token this holds six million tokens, more than a tree of pages holds.
_MAX_BYTES = 64 << 20


class PromptMemo:
    """A thread-safe store of ids. Beyond about `max_bytes` the least recently used texts are evicted.

    Texts remembered in one namespace are found only in that namespace, and none in the namespace None:
    sampled ids and tokenizing times reveal other clients' texts. Without `keeps_replies` no sampled ids are
    remembered, so a text's ids depend only on the text.

    `tokens_remembered` counts the ids that were not tokenized again. `tokens_rewritten` counts remembered ids
    that were of no use because the client or the template changed an earlier reply.
    """

    def __init__(self, tokenizer: Tokenizer, max_bytes: int = _MAX_BYTES, keeps_replies: bool = True) -> None:
        self._tokenizer = tokenizer
        self._keeps_replies = keeps_replies
        self._long_texts = LongTexts(tokenizer)
        self._control = ControlTexts(map(tokenizer.token_text, tokenizer.special_tokens))
        self._cuts = CutPoints(tokenizer)
        self._cut_ids = np.array(sorted(self._cuts.ids), "<i4")
        self._tree = PromptTree(self._cuts, tokenizer.token_bytes, max_bytes)
        self._lock = threading.Lock()
        self.tokens_remembered = 0
        self.tokens_rewritten = 0

    @property
    def enabled(self) -> bool:
        """False if no text can be cut without changing its ids. Then every text is tokenized as a whole."""
        return len(self._cut_ids) > 0

    @property
    def bytes_used(self) -> int:
        return self._tree.bytes_used

    def encode(self, namespace: str | None, text: str) -> Tokens:
        """The ids of a rendered prompt. Special tokens in it are found; none are added."""
        return run_now(self.encode_in_steps(namespace, text))

    def encode_in_steps(
        self, namespace: str | None, text: str, max_tokens: int | None = None, *, special: bool = False
    ) -> Steps[Tokens]:
        """Does the work of `encode` in steps, so that other work can run between them.

        `special`: the tokenizer's own special tokens are around the text, whose ids are then not remembered.
        Raises `TooLongError` for a long text with more than `max_tokens`.
        """
        if special or not self.enabled or namespace is None:
            return (yield from self._long_texts.encode_in_steps(text, special, max_tokens))
        data = text.encode()
        with self._lock:
            place = self._tree.find(namespace, data)
            rewritten = self._find_rewritten(place, data)
        known = Cut(place.end, len(place.tokens) // 4)
        fresh, cuts = yield from self._tokenize(data[place.end :], known.tokens, max_tokens)
        whole = TokenizedText(data, place.tokens + fresh, move_cuts(cuts, known))
        with self._lock:
            self.tokens_remembered += known.tokens
            self.tokens_rewritten += len(rewritten) // 4 - common_length(rewritten, fresh) // 4
            # The text after the last cut is the generation prompt; `remember` stores it with the reply.
            self._tree.insert(namespace, whole.before(whole.cuts[-1] if whole.cuts else known))
        return whole.tokens

    def remember(
        self,
        namespace: str | None,
        prompt_text: str,
        prompt_tokens: Tokens,
        reply_text: str,
        reply_tokens: Tokens,
    ) -> None:
        """Stores the ids of a reply. Tokenizes nothing.

        `reply_text` is the text that the detokenizer returned, special tokens shown or not. `prompt_tokens`
        are the ids that `encode` has returned for `prompt_text` in the namespace, in any tokenizer process.
        Nothing is stored if this memo has other ids for the prompt by now.
        """
        if not self.enabled or not self._keeps_replies or namespace is None:
            return
        prompt = prompt_text.encode()
        with self._lock:
            place = self._tree.find(namespace, prompt)
        rest = prompt[place.end :]
        if len(rest) > self._tree.max_part_bytes or not prompt_tokens.startswith(place.tokens):
            return
        cuts = self._align(rest, prompt_tokens[len(place.tokens) :])
        if cuts is None:
            return
        known = Cut(place.end, len(place.tokens) // 4)
        asked = TokenizedText(prompt, prompt_tokens, move_cuts(cuts, known))
        for reply in find_whole_tokens(self._tokenizer, self._cuts, reply_text, reply_tokens):
            reply = guard_as_sent_back(reply, self._control)
            tokens = reply_tokens[: 4 * reply.tokens]
            said = TokenizedText(reply.text, tokens, reply.cuts, [(0, len(reply.text))])
            with self._lock:
                self._tree.insert(namespace, asked + said)

    def drop(self, concerned: Callable[[str], bool]) -> None:
        """Forgets the namespaces for which `concerned` is true."""
        with self._lock:
            self._tree.drop(concerned)

    def _tokenize(
        self, text: bytes, known: int, max_tokens: int | None = None
    ) -> Steps[tuple[Tokens, list[Cut]]]:
        """The ids and cuts of a prompt, or of its rest after a cut. `known` ids precede that rest."""
        try:
            left = None if max_tokens is None else max_tokens - known
            tokens = yield from self._long_texts.encode_in_steps(text.decode(), max_tokens=left)
        except TooLongError as error:
            raise TooLongError(known + error.tokens) from None
        cuts = self._align(text, tokens)
        if cuts is not None:
            return tokens, cuts
        whole = TokenizedText(b"", b"")
        for start, end in pairwise([0, *filter(None, self._cuts.find_all(text)), len(text)]):
            part = text[start:end]
            ids = yield from self._long_texts.encode_in_steps(part.decode())
            whole += TokenizedText(part, ids, [Cut(0, 0)] if self._cuts.is_cut(part, 0) else [])
        return whole.tokens, whole.cuts

    def _align(self, text: bytes, tokens: Tokens) -> list[Cut] | None:
        """The cuts of a text with their positions among its ids; None if the ids don't match the text."""
        ids = np.frombuffer(tokens, "<i4")
        offsets, indices = self._cuts.find_all(text), np.flatnonzero(np.isin(ids, self._cut_ids)).tolist()
        return list(map(Cut, offsets, indices)) if len(offsets) == len(indices) else None

    def _find_rewritten(self, place: Place, text: bytes) -> Tokens:
        """The ids of earlier turns that are lost because the text continues differently at `place`.

        They are lost if the memo has a reply after the place, and the text has the same prompt there, or at
        least at its end, but other text in that reply's place in a finished turn.
        """
        rest = text[place.end :]
        if self._cuts.find_after(rest, 0) == len(rest):
            return b""
        prompt = remembered = b""
        parts = self._tree.walk_beyond(place)
        for part in parts:
            remembered += part.tokens
            if part.replies:
                prompt += part.text[: part.replies[0][0]]
                break
            prompt += part.text
        else:
            return b""
        if rest == prompt or not (rest.startswith(prompt) or rest.endswith(prompt)):
            return b""
        return remembered + b"".join(part.tokens for part in parts)
