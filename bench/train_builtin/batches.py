"""Turns conversations into token batches with a weight for each target."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .conversation import Conversation, reply_spans
from .mixture import Stage, conversations
from .tokenizer import PAD

LONGEST = 1152
BATCH_TOKENS = 3072
MAX_PADDING = 1.2
PROMPT_SHARE, PROMPT_WEIGHT = 0.1, 0.5
"""A tenth of the prompt tokens are predicted too: names recur in prompts, which teaches copying early."""


@dataclass(frozen=True)
class Example:
    tokens: list[int]
    is_reply: list[bool]


@dataclass(frozen=True)
class Batch:
    """`tokens` int64 [rows, length + 1], padded; `weights` float32 [rows, length], of each next token."""

    tokens: Tensor
    weights: Tensor


def encode(conversation: Conversation, tokenizer: Tokenizer) -> Example:
    text, spans = reply_spans(conversation)
    encoding = tokenizer.encode(text)
    is_reply = [any(start <= at < end for start, end in spans) for at, _ in encoding.offsets]
    return Example(encoding.ids, is_reply)


def make_batches(seed: str, tokenizer: Tokenizer, stage: Stage, tokens: int) -> list[Batch]:
    """Fresh batches of about `tokens` tokens in all; the rows of a batch have similar lengths."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    examples: list[Example] = []
    for conversation in conversations(seed, stage):
        example = encode(conversation, tokenizer)
        if len(example.tokens) <= LONGEST:
            examples.append(example)
            tokens -= len(example.tokens)
        if tokens <= 0:
            break
    examples.sort(key=lambda example: len(example.tokens))
    return [_batch(group, generator) for group in _groups(examples)]


def _groups(examples: list[Example]) -> Iterator[list[Example]]:
    """Cuts examples, sorted by length, into batches that are neither large nor mostly padding.

    Never a single row, for which the compiled layers would be compiled once more.
    """
    group: list[Example] = []
    for example in examples:
        padded = (len(group) + 1) * len(example.tokens)
        real = sum(len(other.tokens) for other in group) + len(example.tokens)
        if len(group) > 1 and (padded > BATCH_TOKENS or padded > MAX_PADDING * real):
            yield group
            group = []
        group.append(example)
    yield group if len(group) > 1 else [*group, *group]


def _batch(examples: list[Example], generator: torch.Generator) -> Batch:
    width = max(len(example.tokens) for example in examples)
    tokens = torch.full((len(examples), width), PAD)
    weights = torch.zeros(len(examples), width - 1)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length] = torch.tensor(example.tokens)
        reply = torch.tensor(example.is_reply[1:])
        sampled = torch.rand(length - 1, generator=generator) < PROMPT_SHARE
        weights[row, : length - 1] = torch.where(reply, 1.0, torch.where(sampled, PROMPT_WEIGHT, 0.0))
    return Batch(tokens, weights)
