"""Bodies of ordinary requests for the soak: chats, schemas, tools, and a fixed set with one right answer."""

from __future__ import annotations

import random
from typing import Any

Body = dict[str, Any]
Schema = dict[str, Any]

_TEXT = (
    "the cat sat on a warm mat while rain fell over Paris and Ada read about whales, engines, seven hills, "
    "old maps, green tea, night trains, a lost key, three friends and their long way home"
)
_WORDS = _TEXT.split()
_NAMES = ("name", "age", "city", "tags", "price", "kind", "items", "note", "size", "when")
REGEXES = (
    r"[a-z]{3,8}",
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe), (because|although) [a-z ]{5,30}\.",
    r"[A-Z][a-z]+( [A-Z][a-z]+){0,3}",
    r"#[0-9a-f]{6}",
)
WEATHER: Body = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Body = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def words(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(least, most)))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def schema(rng: random.Random, depth: int = 2) -> Schema:
    """An object schema that any server should enforce; equal seeds give equal schemas."""
    names = rng.sample(_NAMES, rng.randint(1, 4))
    properties = {name: _value(rng, depth) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": rng.sample(names, rng.randint(1, len(names))),
        "additionalProperties": False,
    }


def _value(rng: random.Random, depth: int) -> Schema:
    makers = [_string, _number, _choice]
    if depth > 0:
        makers += [_array, lambda rng, depth: schema(rng, depth - 1), _either]
    return rng.choice(makers)(rng, depth)


def _string(rng: random.Random, depth: int) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(3, 30)},
            {"type": "string", "pattern": rng.choice(["^[a-z]{2,6}$", "^[A-Z]{3}-[0-9]{2}$"])},
            {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4"])},
        ]
    )


def _number(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}


def _choice(rng: random.Random, depth: int) -> Schema:
    return rng.choice([{"enum": rng.sample(_WORDS, 3)}, {"type": "boolean"}, {"const": words(rng, 1, 2)}])


def _array(rng: random.Random, depth: int) -> Schema:
    return {"type": "array", "items": _value(rng, depth - 1), "minItems": 1, "maxItems": rng.randint(1, 3)}


def _either(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth - 1), {"type": "null"}]}


def bad_body(rng: random.Random) -> tuple[Body, str]:
    """A body that must be refused with 400, and the parameter that its error must name."""
    chat: Body = {"messages": [user("Hello")]}
    return rng.choice(
        [
            ({**chat, "temperature": 3}, "temperature"),
            ({**chat, "n": 0}, "n"),
            ({**chat, "messages": "Hello"}, "messages"),
            ({**chat, "stop": [""]}, "stop"),
            ({**chat, "top_p": "half"}, "top_p"),
            ({**chat, "regex": "(unclosed"}, "regex"),
            ({**chat, "stream_options": {"include_usage": True}}, "stream_options"),
        ]
    )


FIXED: tuple[Body, ...] = (
    {"messages": [user("My name is Ada.")], "max_tokens": 40},
    {
        "messages": [
            user("My name is Grace."),
            {"role": "assistant", "content": "Nice to meet you, Grace!"},
            user("What is my name?"),
        ],
        "max_tokens": 40,
    },
    {"messages": [user("Tell me about the sea. " * 20)], "max_tokens": 60, "ignore_eos": True},
    {"messages": [user("The sky is")], "max_tokens": 24, "logprobs": True, "top_logprobs": 3},
    {"messages": [user("Count")], "max_tokens": 24, "temperature": 1, "seed": 7, "n": 3},
    {"messages": [user("A date, please")], "regex": r"\d{4}-\d{2}-\d{2}", "seed": 1},
    {"messages": [user("A colour")], "choice": ["red", "green", "blue"], "seed": 1},
    {
        "messages": [user("Ada is 36 years old. Extract.")],
        "json_schema": schema(random.Random("fixed")),
        "complete_json": True,
        "max_tokens": 300,
        "seed": 2,
    },
    {
        "messages": [user("Weather in Paris?")],
        "tools": [WEATHER],
        "tool_choice": "required",
        "seed": 3,
        "max_tokens": 200,
    },
)
