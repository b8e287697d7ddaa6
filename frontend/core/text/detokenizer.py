"""Turns output tokens into text that can be sent, piece by piece."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ....runtime.messages import Tokens
from .tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """The result of a push.

    `text` is new and can be sent: later tokens never change it. `stopped` is the stop string that ended the
    text. `tokens_kept` counts the reply's tokens so far; as in vLLM the token that completes the stop string
    is the last of them, whether or not its text is returned. `offsets` has, for each kept token of this push,
    the number of the reply's characters before it.
    """

    text: str
    stopped: str | None
    tokens_kept: int
    offsets: tuple[int, ...]


class Detokenizer:
    """Decodes one choice's tokens, in amortised constant time for each token.

    With `continues_text` (a reply continues its prompt) the space that begins a SentencePiece token is kept
    at the start; otherwise the text is as from `Tokenizer.decode`. `shown_special` are special tokens whose
    text is kept although special tokens are skipped, as they mark tool calls or reasoning. Stop strings are
    searched after the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        *,
        continues_text: bool = True,
        shown_special: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_tokens - shown_special if skip_special_tokens else frozenset()
        self._spaces_to_drop = 0 if continues_text else tokenizer.rules.leading_spaces
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._matcher = StopMatcher(stop) if any(stop) else None
        self._rest = b""  # the bytes of an incomplete character
        self.characters = 0  # characters decoded so far
        self._held = ""  # the last decoded characters, which may begin a stop string
        self._tokens = 0
        self._stopped: str | None = None

    @property
    def has_stop_strings(self) -> bool:
        return self._matcher is not None

    @property
    def holds_text(self) -> bool:
        """Whether decoded text is held back because it may begin a stop string."""
        return bool(self._held)

    def push(self, tokens: Tokens, final: bool) -> TextDelta:
        """Decodes tokens, but ignores those after a stop string. `final`: no more tokens follow."""
        if self._stopped is not None:
            return TextDelta("", self._stopped, self._tokens, ())
        ready: list[str] = []
        offsets: list[int] = []
        for token in memoryview(tokens).cast("i"):
            offsets.append(self.characters)
            self._tokens += 1
            ready.append(self._accept(self._decode(token)))
            if self._stopped is not None:
                break
        if final and self._stopped is None:
            ready.append(self._accept(self._rest.decode("utf-8", "replace")))
            self._rest = b""
        if final:
            ready.append(self._held)
            self._held = ""
        return TextDelta("".join(ready), self._stopped, self._tokens, tuple(offsets))

    def push_one(self, token: int) -> str:
        """Adds one token, which is not the reply's last, of a reply without stop strings. Returns text to
        send."""
        text = self._decode(token)
        self._tokens += 1
        self.characters += len(text)
        return text

    def _decode(self, token: int) -> str:
        data = self._rest if token in self._skipped else self._rest + self._tokenizer.token_bytes(token)
        text, used = utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        while self._spaces_to_drop and text:
            self._spaces_to_drop = self._spaces_to_drop - 1 if text[0] == " " else 0
            text = text.removeprefix(" ")
        return text

    def _accept(self, text: str) -> str:
        """Adds decoded text; returns the text that can be sent now."""
        if self._matcher is None:
            self.characters += len(text)
            return text
        found = self._matcher.push(text) if self._tokens > self._min_tokens else None
        if found is not None:
            return self._end_at(found, text)
        self.characters += len(text)
        unsent = self._held + text
        safe = len(unsent) - self._matcher.held
        self._held = unsent[safe:]
        return unsent[:safe]

    def _end_at(self, found: StopFound, text: str) -> str:
        self._stopped = found.stop
        unsent = self._held + text[: found.end]
        self._held = ""
        return unsent if self._include_stop else unsent.removesuffix(found.stop)


class StopFound(NamedTuple):
    """A stop string was found. It ends `end` characters after the start of the text pushed last."""

    stop: str
    end: int


class StopMatcher:
    """Finds the stop string that is complete first. Of several that end together, it takes the longest.

    A Knuth-Morris-Pratt automaton follows each stop string, so a character costs amortised constant time for
    each stop string, however the text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """Length of the text's longest suffix that could begin a stop string."""
        return max(self._matched, default=0)

    def push(self, text: str) -> StopFound | None:
        """Finds the first stop string completed in `text`. Nothing may be pushed after a find."""
        if not self.held and not any(stop[0] in text for stop in self._stops):
            return None
        for position, character in enumerate(text):
            for index, stop in enumerate(self._stops):
                self._advance(index, stop, character)
                if self._matched[index] == len(stop):
                    return StopFound(stop, position + 1)
        return None

    def _advance(self, index: int, stop: str, character: str) -> None:
        matched = self._matched[index]
        while matched and stop[matched] != character:
            matched = self._failures[index][matched]
        self._matched[index] = matched + (stop[matched] == character)


@lru_cache(1024)  # the choices of a request have the same stop strings
def _failure_table(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt table: entry n is the longest proper border of the pattern's first n characters."""
    table = [0, 0]
    for character in pattern[1:]:
        border = table[-1]
        while border and pattern[border] != character:
            border = table[border]
        table.append(border + (pattern[border] == character))
    return table
