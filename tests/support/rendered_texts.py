"""Texts as chat templates render them, and ids that spell them in other ways."""

from __future__ import annotations

import numpy as np
from arbora.frontend.core.text.tokenizer import Tokenizer
from hypothesis import strategies as st

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>")
PLAIN = (
    "<|im_",
    "<",
    "</think",
    "|>",
    " ",
    "\n\n",
    "▁",
    "assistant",
    "The quick",
    "fox",
    "é",
    "你好",
    "😀",
    "\u0301",
)
rendered_text = st.lists(st.sampled_from(SPECIAL + PLAIN), max_size=14).map("".join)


def packed(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def spelled_out(tokenizer: Tokenizer, text: str) -> bytes:
    """The text in tokens of one byte each, which the tokenizer itself would never choose."""
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    return packed(*(single[bytes([byte])] for byte in text.encode()))


def turn(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
