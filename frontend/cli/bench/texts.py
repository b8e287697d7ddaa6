"""Generated text, equal for equal seeds, of a wanted number of tokens."""

from __future__ import annotations

import random

from .client import Client

_CONSONANTS = "bdfgklmnprstvw"
_VOWELS = "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
_CALIBRATION_WORDS = 2000


class Texts:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._words_per_token = 1.0

    async def calibrate(self, client: Client) -> None:
        """Learns how many words of this text make a token of the server's tokenizer. Raises httpx.HTTPError
        where a server does not tell."""
        tokens = await client.count_tokens(self._words(_CALIBRATION_WORDS))
        self._words_per_token = _CALIBRATION_WORDS / tokens

    def text(self, tokens: int) -> str:
        return self._words(max(1, round(tokens * self._words_per_token)))

    def _words(self, count: int) -> str:
        pick = self._random
        return " ".join("".join(pick.choices(_SYLLABLES, k=pick.randint(1, 3))) for _ in range(count))
