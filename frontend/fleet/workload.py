"""Requests for a simulated fleet: read from a trace, or conversations made by a random generator."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice
from pathlib import Path

import msgspec

from ...runtime.errors import ConfigError
from ...runtime.messages import Tokens
from .json_lines import read_json_lines

TRACE_BLOCK = 512  # tokens for which a hash in Mooncake's format stands
MAX_BLOCK_ID = (1 << 30) - 1
"""Ids of tokens in replies begin after it, so that no prompt has them by chance."""
SYSTEM_PROMPTS = 20
SYSTEM_TOKENS = 1024  # length of a system prompt, with which conversations begin
TURN_TOKENS = 512  # mean number of tokens by which a prompt exceeds the conversation's last one
REPLY_TOKENS = 128  # mean length of a reply
GO_ON = 0.75  # share of the turns after which a conversation goes on
PAUSE_S = 20.0  # between two requests of a conversation, on average
MADE_BLOCK = 64  # tokens in a block of a made prompt
LONG_CONTEXT = 1 << 20
FORMAT = "Each line is a JSON object with timestamp (milliseconds), input_length, output_length and hash_ids."


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a workload. Equal `blocks` mean equal content after an equal prefix."""

    at: float  # seconds since the start
    blocks: Sequence[int]
    block: int  # tokens for which an element of `blocks` stands
    length: int  # tokens in the prompt
    output: int  # tokens in the reply

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
    decoder = msgspec.json.Decoder(_Line)
    arrivals = list[Arrival]()
    for place, line in read_json_lines(path, "--trace", decoder, FORMAT, limit):
        _check(line, place)
        at = line.timestamp / 1e3 / speed
        if arrivals and at < arrivals[-1].at:
            raise ConfigError(f"{place}: timestamp {line.timestamp:g} is before the last line's. Sort by it.")
        arrivals.append(
            Arrival(at, line.hash_ids, TRACE_BLOCK, line.input_length, max(1, line.output_length))
        )
    if not arrivals:
        raise ConfigError(f"--trace {path}: it has no requests. Write a line for each.")
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


def make_conversations(
    rate: float, requests: int, context: int = LONG_CONTEXT, seed: int = 1
) -> list[Arrival]:
    """Conversations under a few system prompts, as `rate` requests a second. Each prompt of a conversation
    begins with the one before. At the start as many conversations are under way as at any later time. In
    place of a turn that the context is too short for, a new conversation begins."""
    source = random.Random(seed)
    fresh, arrivals = count(SYSTEM_PROMPTS * SYSTEM_TOKENS), list[Arrival]()
    due = [_pause(source, 0.0, _make_past(source, fresh)) for _ in range(round(rate * GO_ON * PAUSE_S))]
    heapify(due)
    begins = _count_up(source, rate * (1 - GO_ON))
    next_begin = next(begins)
    while len(arrivals) < requests:
        if due and due[0].at <= next_begin:
            turn = heappop(due)
        else:
            turn, next_begin = _Turn(next_begin, _choose_system(source)), next(begins)
        output = 1 + int(source.expovariate(1 / REPLY_TOKENS))
        blocks = _grow(source, fresh, turn.blocks)
        if len(blocks) * MADE_BLOCK + output > context:
            most = max(1, (context - output) // MADE_BLOCK)
            blocks = _grow(source, fresh, _choose_system(source))[:most]
        length = len(blocks) * MADE_BLOCK - source.randrange(MADE_BLOCK)
        arrivals.append(Arrival(turn.at, blocks, MADE_BLOCK, length, output))
        if source.random() < GO_ON:
            heappush(due, _pause(source, turn.at, blocks))
    return arrivals


@dataclass(frozen=True, slots=True, order=True)
class _Turn:
    """When a conversation goes on, and its blocks so far."""

    at: float
    blocks: list[int]


def _pause(source: random.Random, at: float, blocks: list[int]) -> _Turn:
    """The next turn of a conversation after a pause that begins at a time."""
    return _Turn(at + source.expovariate(1 / PAUSE_S), blocks)


def _make_past(source: random.Random, fresh: Iterator[int]) -> list[int]:
    """The blocks of a conversation that has had turns before the start."""
    blocks = _grow(source, fresh, _choose_system(source))
    while source.random() < GO_ON:
        blocks = _grow(source, fresh, blocks)
    return blocks


def _choose_system(source: random.Random) -> list[int]:
    """The blocks of a system prompt."""
    system = min(int(source.expovariate(4.0 / SYSTEM_PROMPTS)), SYSTEM_PROMPTS - 1)
    first = system * SYSTEM_TOKENS
    return list(range(first, first + SYSTEM_TOKENS // MADE_BLOCK))


def _grow(source: random.Random, fresh: Iterator[int], blocks: list[int]) -> list[int]:
    """The blocks with those of a turn."""
    return [*blocks, *islice(fresh, 1 + int(source.expovariate(MADE_BLOCK / TURN_TOKENS)))]


def _count_up(source: random.Random, rate: float) -> Iterator[float]:
    """Times of random events, `rate` of them in a second."""
    at = 0.0
    while True:
        at += source.expovariate(rate)
        yield at
