"""Requests for a simulated fleet: read from a trace, or conversations made by a random generator."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from ...runtime.errors import ConfigError
from ...runtime.messages import Tokens

TRACE_BLOCK = 512  # tokens in a block of a trace in Mooncake's format
MAX_BLOCK_ID = (1 << 30) - 1
"""Ids of tokens in replies begin after it, so that no prompt has them by chance."""
SYSTEM_PROMPTS = 20
SYSTEM_TOKENS = 1024  # of a system prompt, with which the conversations of an application begin
TURN_TOKENS = 512  # tokens by which a prompt of a conversation exceeds the one before, on average
REPLY_TOKENS = 128  # of a reply, on average
MEAN_TURNS = 4
PAUSE_S = 20.0  # between two requests of a conversation, on average
MADE_BLOCK = 64  # tokens in a block of a made prompt


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a workload. Equal `blocks` mean equal content after an equal prefix."""

    at: float  # seconds since the start
    blocks: Sequence[int]
    block: int  # tokens for which an element of `blocks` stands
    length: int  # of the prompt, in tokens
    output: int  # tokens of the reply

    def make_prompt(self) -> Tokens:
        """The prompt: each token of a block has the block's id."""
        ids = array("i", self.blocks)
        size = ids.itemsize
        data = ids.tobytes()
        tokens = b"".join(data[at : at + size] * self.block for at in range(0, len(data), size))
        return tokens[: self.length * size]


class _Line(msgspec.Struct):
    """A line of a trace. `timestamp` is in milliseconds."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path, speed: float = 1.0, limit: int | None = None) -> list[Arrival]:
    """Reads a trace in Mooncake's format, in which requests come `speed` times as fast as they did. Raises
    ConfigError for a line that is not in the format."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--trace {path}: it can't be read: {error.strerror}.") from None
    decoder = msgspec.json.Decoder(_Line)
    arrivals = list[Arrival]()
    for number, text in enumerate(lines[:limit], start=1):
        place = f"--trace {path}, line {number}"
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{place}: {error}. Each line is a JSON object with timestamp (milliseconds), input_length, "
                "output_length and hash_ids."
            ) from None
        _check(line, place)
        at = line.timestamp / 1e3 / speed
        if arrivals and at < arrivals[-1].at:
            raise ConfigError(f"{place}: timestamp {line.timestamp:g} is before the last line's. Sort by it.")
        arrivals.append(
            Arrival(at, line.hash_ids, TRACE_BLOCK, line.input_length, max(1, line.output_length))
        )
    if not arrivals:
        raise ConfigError(f"--trace {path}: it has no requests.")
    return arrivals


def _check(line: _Line, place: str) -> None:
    if line.timestamp < 0:
        raise ConfigError(f"{place}: timestamp {line.timestamp:g} is negative; the trace begins at 0.")
    if line.input_length < 1:
        raise ConfigError(f"{place}: input_length is {line.input_length}; a prompt has at least 1 token.")
    if line.output_length < 0:
        raise ConfigError(f"{place}: output_length is {line.output_length}; it can't be negative.")
    needed = -(-line.input_length // TRACE_BLOCK)
    if len(line.hash_ids) != needed:
        raise ConfigError(
            f"{place}: hash_ids has {len(line.hash_ids)} blocks, but input_length {line.input_length} needs "
            f"{needed} of {TRACE_BLOCK} tokens."
        )
    for block in line.hash_ids:
        if not 0 <= block <= MAX_BLOCK_ID:
            raise ConfigError(f"{place}: hash_ids has {block}; ids are from 0 to {MAX_BLOCK_ID}.")


def make_conversations(rate: float, requests: int, seed: int = 1) -> list[Arrival]:
    """Conversations under a few system prompts, as `rate` requests a second. Each prompt of a conversation
    begins with the one before. The begun conversations of the start are spread over time, so the rate rises
    at the beginning only."""
    source = random.Random(seed)
    begins = _count_up(source, rate / MEAN_TURNS)
    next_begin, fresh, due = next(begins), SYSTEM_PROMPTS * SYSTEM_TOKENS, list[_Turn]()
    arrivals = list[Arrival]()
    while len(arrivals) < requests:
        if due and due[0].at <= next_begin:
            turn = heappop(due)
        else:
            system = min(int(source.expovariate(4.0 / SYSTEM_PROMPTS)), SYSTEM_PROMPTS - 1)
            first = system * SYSTEM_TOKENS
            blocks = list(range(first, first + SYSTEM_TOKENS // MADE_BLOCK))
            turn, next_begin = _Turn(next_begin, blocks), next(begins)
        added = 1 + int(source.expovariate(MADE_BLOCK / TURN_TOKENS))
        blocks = [*turn.blocks, *range(fresh, fresh + added)]
        fresh += added
        length = len(blocks) * MADE_BLOCK - source.randrange(MADE_BLOCK)
        output = 1 + int(source.expovariate(1 / REPLY_TOKENS))
        arrivals.append(Arrival(turn.at, blocks, MADE_BLOCK, length, output))
        if source.random() < 1 - 1 / MEAN_TURNS:
            heappush(due, _Turn(turn.at + source.expovariate(1 / PAUSE_S), blocks))
    return arrivals


@dataclass(frozen=True, slots=True, order=True)
class _Turn:
    """When a conversation goes on, and its blocks so far."""

    at: float
    blocks: list[int]


def _count_up(source: random.Random, rate: float) -> Iterator[float]:
    """Times of random events, `rate` of them in a second."""
    at = 0.0
    while True:
        at += source.expovariate(rate)
        yield at
