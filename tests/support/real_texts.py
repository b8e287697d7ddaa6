"""Texts that every machine has, and texts of random characters of all scripts."""

from __future__ import annotations

import argparse
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import arbora

ROOT = Path(arbora.__file__).parent
PROSE = (ROOT / "bench/texts/prose.txt").read_text("utf-8")
CODE = Path(argparse.__file__).read_text("utf-8")
LICENSE = (ROOT / "LICENSE").read_text("utf-8")
BLANKS = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b")
EMOJI = ("😀", "👩🏽‍🔬", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "1️⃣", "❤️", "✍🏿")
CHARACTERS_OF_A_SCRIPT = 400


def tokenizer_texts() -> Iterator[str]:
    """More than 200 KB in pieces: code, prose, numbers after blanks, emoji, and words of every script."""
    yield from (CODE[at : at + 4000] for at in range(0, 80_000, 4000))
    yield from (PROSE, LICENSE)
    random = Random("texts")
    yield from (_numbers(random) for _ in range(20))
    yield from ("".join(random.choices(EMOJI + BLANKS + ("a", "7", "!"), k=200)) for _ in range(10))
    for characters in _scripts().values():
        random.shuffle(characters)
        yield _words(random, characters[:CHARACTERS_OF_A_SCRIPT])


def _numbers(random: Random) -> str:
    numbers = (str(random.randrange(10 ** random.randint(1, 12))) for _ in range(120))
    return "".join(
        f"{random.choice(BLANKS)}{number}{random.choice(('', '.5', ',', '%', 'x', 'th'))}"
        for number in numbers
    )


def _words(random: Random, characters: list[str]) -> str:
    """The characters in words of up to eight, between blanks, numbers and punctuation."""
    text, at = "", 0
    while at < len(characters):
        size = random.randint(1, 8)
        text += "".join(characters[at : at + size]) + random.choice((" ", ", ", " 42 ", ".\n", "’s ", "-"))
        at += size
    return text


def _scripts() -> dict[str, list[str]]:
    """All assigned characters by the first word of their names, such as CYRILLIC."""
    found = defaultdict(list)
    for code in range(sys.maxunicode + 1):
        name = unicodedata.name(chr(code), "")
        if name:
            found[name.partition(" ")[0].partition("-")[0]].append(chr(code))
    return found
