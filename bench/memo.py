"""Measures the tokenizer process's time for each turn of a chat, and how much of each prompt can be reused.

Conversations with replies of random tokens take turns; columns are medians over the conversations.
"Reusable" is the share of the previous turn (prompt and reply) with which the next prompt begins.
Run: PYTHONSAFEPATH=1 python bench/memo.py [MODEL_DIR ...]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import tokenizers
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[1]
CONVERSATIONS = 10
SHOWN_TURNS = (1, 10, 25, 50, 100)
REPLY_TOKENS = 200
QUESTION_CHARACTERS = 400
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
T = TypeVar("T")


@dataclass
class Conversation:
    messages: list[dict[str, Any]] = field(default_factory=list)
    before: bytes = b""


@dataclass(frozen=True)
class Sample:
    prompt_tokens: int
    render: float
    encode: float
    remember: float
    afresh: float
    reusable: float


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and the microseconds that it took."""
    start = time.perf_counter_ns()
    result = work()
    return result, (time.perf_counter_ns() - start) / 1_000


class Chats:
    """Conversations that share a memo."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, text: str) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._text = text
        self._memo = PromptMemo(tokenizer)
        self._chance = random.Random(0)
        self._plain = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.special_tokens]

    def turn(self, conversation: Conversation, compare: bool) -> Sample:
        """One turn. `compare`: also tokenizes the whole prompt anew."""
        messages, before = conversation.messages, conversation.before
        start = self._chance.randrange(len(self._text) - QUESTION_CHARACTERS)
        messages.append({"role": "user", "content": self._text[start : start + QUESTION_CHARACTERS]})
        text, render = timed(lambda: self._template.render(messages))
        prompt, encode = timed(lambda: self._memo.encode("", text))
        afresh = timed(lambda: self._tokenizer.encode(text, add_special_tokens=False))[1] if compare else 0.0
        reply = np.array(self._chance.choices(self._plain, k=REPLY_TOKENS), "<i4").tobytes()
        said = Detokenizer(self._tokenizer, continues_text=False).push(reply, final=True).text
        _, remember = timed(lambda: self._memo.remember("", text, prompt, said, reply))
        messages.append({"role": "assistant", "content": said})
        conversation.before = prompt + reply
        reusable = common_tokens(before, prompt) / (len(before) // 4) if before else 1.0
        return Sample(len(prompt) // 4, render, encode, remember, afresh, reusable)


def common_tokens(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    different = np.frombuffer(first[:length], "<i4") != np.frombuffer(second[:length], "<i4")
    return int(different.argmax()) if different.any() else length // 4


def measure(name: str, tokenizer: Tokenizer, template: ChatTemplate, text: str) -> None:
    chats = Chats(tokenizer, template, text)
    conversations = [Conversation() for _ in range(CONVERSATIONS)]
    print(f"\n{name}\nturn   tokens   render  memo: encode  remember   without a memo   reusable   (µs)")
    worst = 1.0
    for turn in range(1, max(SHOWN_TURNS) + 1):
        samples = [chats.turn(conversation, turn in SHOWN_TURNS) for conversation in conversations]
        worst = min(worst, *(sample.reusable for sample in samples))
        if turn in SHOWN_TURNS:
            columns = [
                median(getattr(sample, column) for sample in samples)
                for column in ("prompt_tokens", "render", "encode", "remember", "afresh", "reusable")
            ]
            print("{:4}{:9,.0f}{:9,.0f}{:14,.0f}{:10,.0f}{:17,.0f}{:11.1%}".format(turn, *columns))
    print(f"the least of any turn: {worst:.1%}")


def byte_level(lines: list[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(lines, trainer(special_tokens=list(SPECIAL), initial_alphabet=alphabet))
    return backend


def sentencepiece(lines: list[str]) -> tokenizers.Tokenizer:
    """A tokenizer with a metaspace only before the first word, and bytes for text that has no token."""
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.train_from_iterator(lines, trainer(special_tokens=[*SPECIAL, *BYTES]))
    return backend


def trainer(**options: Any) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(vocab_size=8_000, show_progress=False, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, help="models whose tokenizer is measured, too")
    arguments = parser.parse_args()
    paths = [path for folder in ("docs", "frontend", "grammars") for path in (ROOT / folder).rglob("*.*")]
    text = "".join(path.read_text("utf-8") for path in sorted(paths) if path.suffix in (".md", ".py"))
    lines = text.splitlines(keepends=True)
    for name, train in (("byte-level BPE", byte_level), ("SentencePiece-style BPE", sentencepiece)):
        backend = train(lines)
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
        measure(
            name, Tokenizer(backend, {}, ()), ChatTemplate({"default": CHATML}, {}, frozenset(SPECIAL)), text
        )
    for directory in arguments.directories:
        tokenizer = Tokenizer.load(directory)
        template = ChatTemplate.load(directory, tokenizer)
        if template is None:
            parser.error(f"{directory} has no chat template")
        measure(str(directory), tokenizer, template, text)


if __name__ == "__main__":
    main()
