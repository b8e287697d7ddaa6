"""Conversations as a chat endpoint holds them: rendered, tokenized, answered with tokens, remembered."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import tokenizers
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.control_texts import ControlTexts
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer
from tokenizers import AddedToken
from tokenizers_for_tests import KINDS

BARE = """\
{{ bos_token }}{% for message in messages %}\
{% if message.role == 'user' %}[INST] {{ message.content }}[/INST]{% else %}{{ message.content }}{% endif %}\
{% endfor %}"""
_CONTROL = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]")
_VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
_LOOK_ALIKES = ("<|im_end|>", "<|eot_id|>", "</s>", "<|im_", "|>", "[INST", "]", "\n", "\n\n", " ", "é", "😀")


class ChatTokenizer(Tokenizer):
    """Knows the special tokens of several templates, and how many characters it was given."""

    characters = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> bytes:
        self.characters += len(text)
        return super().encode(text, add_special_tokens)

    @functools.cached_property
    def plain_tokens(self) -> list[int]:
        return [token for token in range(self.vocab_size) if token not in self.special_tokens]

    @functools.cached_property
    def by_first_byte(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for token in self.plain_tokens:
            found.setdefault(self.token_bytes(token)[:1], []).append(token)
        return found


def chat_tokenizer(kind: str) -> ChatTokenizer:
    backend = tokenizers.Tokenizer.from_str(KINDS[kind]())
    backend.add_tokens([AddedToken(text, normalized=False, special=True) for text in _CONTROL])
    return ChatTokenizer(backend, {}, ())


def packed(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def spell(tokenizer: ChatTokenizer, text: str, chance: random.Random | None = None) -> bytes:
    """The text in tokens drawn by chance, without any in those of one byte."""
    data, tokens = text.encode(), b""
    while data:
        able = [
            token
            for token in tokenizer.by_first_byte[data[:1]]
            if data.startswith(tokenizer.token_bytes(token))
        ]
        token = (
            chance.choice(able) if chance else min(able, key=lambda each: len(tokenizer.token_bytes(each)))
        )
        tokens += packed(token)
        data = data[len(tokenizer.token_bytes(token)) :]
    return tokens


def random_reply(tokenizer: ChatTokenizer, chance: random.Random) -> bytes:
    """Any tokens but special ones: parts of characters, marks, spaces, look-alikes."""
    return b"".join(
        packed(chance.choice(tokenizer.plain_tokens))
        if chance.random() < 0.9
        else spell(tokenizer, chance.choice(_LOOK_ALIKES))
        for _ in range(chance.randint(1, 40))
    )


def common_tokens(first: bytes, second: bytes) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(memoryview(first).cast("i"), memoryview(second).cast("i"), strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)) // 4)


class Conversation:
    """`text` and `prompt` are the last prompt's."""

    def __init__(self, memo: PromptMemo, tokenizer: Tokenizer, template: str, system: str = "") -> None:
        self._memo = memo
        self._tokenizer = tokenizer
        special = frozenset(map(tokenizer.token_text, tokenizer.special_tokens))
        self._template = ChatTemplate({"default": template}, _VARIABLES, special)
        self.guard = ControlTexts(special).guard
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self.text = ""
        self.prompt = b""

    def ask(self, question: str) -> bytes:
        self.messages.append({"role": "user", "content": question})
        return self.render()

    def render(self, **options: Any) -> bytes:
        """`options` are those of `ChatTemplate.render`."""
        self.text = self._template.render(self.messages, **options)
        self.prompt = self._memo.encode("", self.text)
        return self.prompt

    def answer(self, produced: bytes, stop: str = "") -> str:
        """The reply as the client gets it."""
        shown = self._tokenizer.special_tokens
        detokenizer = Detokenizer(
            self._tokenizer, [stop] if stop else [], continues_text=False, shown_special=shown
        )
        delta = detokenizer.push(produced, final=True)
        self._memo.remember("", self.text, self.prompt, delta.text, produced[: 4 * delta.tokens_kept])
        self.messages.append({"role": "assistant", "content": delta.text})
        return delta.text
