"""Requests whose replies repeat something or nothing, with what a strong model would answer."""

from __future__ import annotations

import heapq
import inspect
import json
import random
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mixed_load import CITIES, NAMES, PERSON

Body = dict[str, Any]
PROSE = Path(__file__).parent.parent / "texts/prose.txt"
FUNCTIONS = (
    heapq.nsmallest,
    heapq.merge,
    shutil.copyfileobj,
    shutil.copytree,
    textwrap.indent,
    textwrap.fill,
)
CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["list_files", "search", "read_file", "edit_file", "report"]},
        "path": {"type": "string", "maxLength": 60},
        "text": {"type": "string", "maxLength": 200},
    },
    "required": ["tool", "path", "text"],
    "additionalProperties": False,
}
TURNS = 6
"""calls of an agent's conversation"""


class Asked(NamedTuple):
    body: Body
    answer: str = ""
    """the right answer; empty: there are many"""


def chat(content: str, **fields: Any) -> Body:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0.0, "max_tokens": 120, **fields}


def constrain(schema: dict[str, Any]) -> Body:
    named = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def write_extraction(number: int) -> Asked:
    choose = random.Random(number)
    name, city, age = choose.choice(NAMES), choose.choice(CITIES), choose.randint(18, 90)
    text = f"{name} is {age} years old, lives in {city} and likes lamps. JSON."
    answer = {"name": name, "age": age, "city": city, "tags": ["lamps"]}
    return Asked(chat(text, **constrain(PERSON)), json.dumps(answer))


def write_quotation(number: int) -> Asked:
    choose = random.Random(number)
    lines = "\n".join(f"{choose.choice(NAMES)} bought {choose.randint(2, 99)} lamps." for _ in range(12))
    return Asked(chat(f"{lines}\nRepeat this text word for word.", ignore_eos=True), lines)


def write_code_edit(number: int) -> Asked:
    """A function of Python's library, in which a name is replaced."""
    function = FUNCTIONS[number % len(FUNCTIONS)]
    code = "".join(inspect.getsource(function).splitlines(keepends=True)[:30])
    old = next(iter(inspect.signature(function).parameters))
    new = f"{old}_{CITIES[number // len(FUNCTIONS) % len(CITIES)].lower()}"
    text = f"```python\n{code}```\nRename `{old}` to `{new}`. Answer with the whole code."
    return Asked(chat(text, max_tokens=240, ignore_eos=True), code.replace(old, new))


def write_agent_turn(number: int) -> Asked:
    """A turn of an agent's conversation, behind its earlier calls and their results."""
    conversation, turn = divmod(number, TURNS)
    function = FUNCTIONS[conversation % len(FUNCTIONS)]
    path = f"src/{function.__module__}/{function.__name__}_{conversation}.py"
    code = "".join(inspect.getsource(function).splitlines(keepends=True)[:8])
    line = code.splitlines()[0]
    calls = [
        ("list_files", "src", ""),
        ("search", "src", f"def {function.__name__}"),
        ("read_file", path, ""),
        ("edit_file", path, line.replace("(", "_new(", 1)),
        ("read_file", path, ""),
        ("report", path, f"Renamed {function.__name__} in {path}."),
    ]
    results = [path, f"{path}:1: {line}", code, "edited", code.replace("(", "_new(", 1)]
    answers = [json.dumps(dict(zip(("tool", "path", "text"), call, strict=True))) for call in calls]
    task = f"Rename the function {function.__name__} to {function.__name__}_new. Call a tool in each turn."
    body = chat(task, **constrain(CALL))
    for answer, result in zip(answers[:turn], results, strict=False):
        body["messages"].append({"role": "assistant", "content": answer})
        body["messages"].append({"role": "user", "content": f"Result:\n{result}"})
    return Asked(body, answers[turn])


def write_story(number: int) -> Asked:
    return Asked(chat(f"Tell a story about {NAMES[number % 10]} in {CITIES[number % 6]}.", ignore_eos=True))


def write_sampled_story(number: int) -> Asked:
    return Asked({**write_story(number).body, "temperature": 0.8, "seed": number})


def write_shuffled(number: int) -> Asked:
    words = PROSE.read_text().split()
    random.Random(number).shuffle(words)
    return Asked(chat(" ".join(words[:200]), temperature=1.5, seed=number, ignore_eos=True))


KINDS: dict[str, Callable[[int], Asked]] = {
    "extraction": write_extraction,
    "quotation": write_quotation,
    "code edit": write_code_edit,
    "agent": write_agent_turn,
    "story": write_story,
    "story at 0.8": write_sampled_story,
    "shuffled words": write_shuffled,
}
