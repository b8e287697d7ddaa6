"""A load of every kind of request, to be replayed in any order: no request depends on another's reply."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from arbora import Engine
from arbora.frontend.core.logprobs import TokenLogprob

NAMES = ("Ada", "Bruno", "Chidi", "Dana", "Emil", "Fay", "Goran", "Hana", "Ines", "Jon")
CITIES = ("Oslo", "Lima", "Kyoto", "Graz", "Accra", "Turin")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": list(CITIES)},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
SYSTEMS = (
    "You are a helpful assistant. Answer in one short sentence.",
    "You read forms. Say what is in them and nothing else. " * 12,
)


class Ask(NamedTuple):
    """One request: a conversation, or a plain prompt."""

    messages: list[dict[str, str]] | None
    prompt: str
    sampling: dict[str, Any]


class Answer(NamedTuple):
    """The parts of an answer that must be equal. `logprobs` are those of the tokens and of their
    alternatives."""

    tokens: list[int]
    text: str
    finish_reason: str
    logprobs: Sequence[TokenLogprob]


def mixed_load(count: int, seed: int = 0, scale: int = 1) -> list[Ask]:
    """`scale` stretches prompts: documents have about 100 tokens times that."""
    choose = random.Random(seed)
    kinds = (chat_turn, form, pattern, sampled_story, document_question, other_fields)
    return [kinds[number % len(kinds)](number, choose, scale) for number in range(count)]


def chat_turn(number: int, choose: random.Random, scale: int) -> Ask:
    """The third turn of one of some conversations, at changing depths."""
    name, city = NAMES[number % len(NAMES)], CITIES[number % len(CITIES)]
    turns = [
        ("user", f"My name is {name}."),
        ("assistant", f"Nice to meet you, {name}."),
        ("user", f"I live in {city}."),
        ("assistant", f"{city} is nice."),
        ("user", f"What is my name, and where do I live? Question {number % 40}."),
    ]
    start = [{"role": "system", "content": SYSTEMS[number % 2]}]
    kept = turns if choose.random() < 0.7 else turns[-3:]
    messages = start + [{"role": role, "content": content} for role, content in kept]
    return Ask(messages, "", {"temperature": 0.0, "max_tokens": choose.randint(8, 60)})


def form(number: int, choose: random.Random, scale: int) -> Ask:
    task = f"{NAMES[number % 10]} is {20 + number % 50} years old and lives in {choose.choice(CITIES)}. JSON."
    sampling: dict[str, Any] = {"json_schema": PERSON, "max_tokens": 80, "temperature": 0.0}
    match number % 4:
        case 1:
            sampling |= {"property_order": "any"}
        case 2:
            sampling |= {"temperature": 1.2, "seed": number, "complete_json": True, "max_tokens": 70}
        case 3:
            own = {**PERSON, "title": f"schema {number}"}
            sampling |= {"json_schema": own, "temperature": 0.8, "top_p": 0.9, "seed": number}
    return Ask([{"role": "user", "content": task}], "", sampling)


def pattern(number: int, choose: random.Random, scale: int) -> Ask:
    if number % 3 == 0:
        return Ask(None, "The colour is", {"choice": ["red", "green", "blue-green"], "temperature": 0.0})
    regex = rf"[A-Z][a-z]{{2,8}} (lives|works) in (Oslo|Lima), number {number % 5}[0-9]{{2}}\."
    sampling = {"regex": regex, "max_tokens": 40, "temperature": 1.0, "seed": number}
    return Ask(None, f"Write about {NAMES[number % 10]}: ", sampling)


def sampled_story(number: int, choose: random.Random, scale: int) -> Ask:
    sampling: dict[str, Any] = {"temperature": 1.3, "seed": number, "max_tokens": choose.randint(1, 90)}
    match number % 5:
        case 0:
            sampling |= {"top_k": 40, "repetition_penalty": 1.2}
        case 1:
            sampling |= {"top_p": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.3}
        case 2:
            sampling |= {"min_p": 0.05, "ignore_eos": True}
        case 3:
            sampling |= {"min_tokens": sampling["max_tokens"] // 2, "stop": [" and", "\n\n"]}
    return Ask(None, f"Once upon a time in {CITIES[number % 6]} there was", sampling)


def document_question(number: int, choose: random.Random, scale: int) -> Ask:
    """A question to one of four documents, cut at a random place, so that many requests share prefixes."""
    writer = random.Random(number % 4)
    lines = [
        f"{writer.choice(NAMES)} bought {writer.randint(2, 99)} lamps in {writer.choice(CITIES)}."
        for _ in range(12 * scale)
    ]
    kept = lines[: choose.randint(len(lines) // 3, len(lines))]
    messages = [{"role": "user", "content": "\n".join(kept) + f"\nWho bought lamp {number % 9}?"}]
    return Ask(messages, "", {"temperature": 0.0, "max_tokens": choose.randint(4, 40), "ignore_eos": True})


def other_fields(number: int, choose: random.Random, scale: int) -> Ask:
    """A request without the cache, with its own salt, or with log-probabilities."""
    fields = ({"cache_prompt": False}, {"cache_salt": f"salt {number % 3}"}, {"logprobs": 5}, {"priority": 3})
    content = f"{SYSTEMS[1]} {NAMES[number % 10]} is {number % 90} years old. How old?"
    sampling = {"temperature": 0.0, "max_tokens": 30, **fields[number // 6 % 4]}
    return Ask([{"role": "user", "content": content}], "", sampling)


async def _answer(engine: Engine, ask: Ask) -> Answer:
    if ask.messages is not None:
        reply = await engine.achat(ask.messages, **ask.sampling)
    else:
        completion = await engine.agenerate(ask.prompt, **ask.sampling)
        assert not isinstance(completion, list)
        reply = completion
    return Answer(reply.tokens, reply.text, reply.finish_reason, reply.logprobs)


def replay(
    engine: Engine,
    load: Sequence[Ask],
    order: Sequence[int],
    in_flight: int,
    done: Callable[[int], None] = lambda tokens: None,
) -> list[Answer]:
    """The answers in the order of the load; `order` is the order in which they are requested."""
    answers: dict[int, Answer] = {}
    waiting: Iterator[int] = iter(order)

    async def client() -> None:
        for number in waiting:
            answers[number] = await _answer(engine, load[number])
            done(len(answers[number].tokens))

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(in_flight)))

    asyncio.run(clients())
    return [answers[number] for number in sorted(answers)]


def shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def differing(one: Sequence[Answer], other: Sequence[Answer]) -> list[int]:
    """The numbers of the requests whose answers differ in a token, a log-probability or how they ended."""
    pairs = enumerate(zip(one, other, strict=True))
    return [number for number, (first, second) in pairs if first != second]
