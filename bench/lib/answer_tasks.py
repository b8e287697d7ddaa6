"""The tasks of `answers.py`: questions with known answers, from seeds and from Python's standard library."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

Schema = dict[str, Any]

_LINES = (Path(__file__).parents[1] / "texts" / "answer_words.txt").read_text(encoding="utf-8").splitlines()
WORDS = {name: words.split() for name, _, words in (line.partition(":") for line in _LINES)}
DEPARTMENTS = {
    "Department of Billing, Invoices and Refunds": ["my invoice", "a refund", "a wrong bill"],
    "Department of Shipping, Parcels and Returns": ["a lost parcel", "a late delivery", "a shipping label"],
    "Department of Passwords, Accounts and Logins": ["my password", "my account", "a failed login"],
    "Department of Repairs, Parts and Warranty": ["a broken part", "a repair", "the warranty"],
    "Department of Press, Events and Interviews": ["an interview", "a press photo", "an event"],
}
TOPICS = {
    "food": ["soup", "bread", "cheese", "rice", "pasta"],
    "music": ["piano", "song", "violin", "concert", "drums"],
    "sport": ["football", "tennis", "goal", "marathon", "swimming"],
    "weather": ["rain", "snow", "wind", "storm", "sunshine"],
}

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "format": "date"}
STRINGS: Schema = {"type": "array", "items": STRING}
STRING_OR_NULL: Schema = {"anyOf": [STRING, {"type": "null"}]}

Turn = dict[str, Any]


class Case(NamedTuple):
    prompt: str
    answer: Any
    """the value that a right reply holds; of a choice its text"""


class Task(NamedTuple):
    name: str
    make: Callable[[Random], Case]
    schema: Schema
    """of the answer"""
    examples: int = 0
    """turns with right answers before the question"""
    indent: int | None = None
    """of the JSON in the examples; None writes it on one line, with spaces"""
    max_tokens: int = 96
    choices: tuple[str, ...] = ()
    tools: tuple[Schema, ...] = ()
    """the answer is a call of one of them: an object with `name` and `arguments`"""

    def cases(self, count: int) -> list[Case]:
        """As many different cases, none of which is an example; fewer cases are the first of more."""
        seen = {case.prompt for case in self._examples()}
        found: list[Case] = []
        for number in range(count * 20):
            case = self.make(Random(f"{self.name}/{number}"))
            if case.prompt not in seen and len(found) < count:
                seen.add(case.prompt)
                found.append(case)
        return found

    def turns(self, case: Case, are_calls: bool = False) -> list[Turn]:
        """The messages of a case: the examples, as calls of tools if wanted, then the question."""
        turns: list[Turn] = []
        for number, example in enumerate(self._examples()):
            turns += [
                user(example.prompt),
                *self._answer(example.answer, f"call_{number}" if are_calls else None),
            ]
        return [*turns, user(case.prompt)]

    def _answer(self, answer: Any, call: str | None) -> list[Turn]:
        """The turns that answer; with the id of a call they are the call and its result."""
        if call is None:
            said = answer if self.choices else json.dumps(answer, indent=self.indent)
            return [{"role": "assistant", "content": said}]
        function = {"name": answer["name"], "arguments": json.dumps(answer["arguments"])}
        tool_calls = [{"id": call, "type": "function", "function": function}]
        return [
            {"role": "assistant", "content": None, "tool_calls": tool_calls},
            {"role": "tool", "tool_call_id": call, "content": "done"},
        ]

    def _examples(self) -> list[Case]:
        return [self.make(Random(f"{self.name}/example {number}")) for number in range(self.examples)]


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def fields(**properties: Schema) -> Schema:
    """An object that has exactly these properties."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def one_of(values: list[Any]) -> Schema:
    return {"enum": values}


def _name(rng: Random) -> str:
    return f"{rng.choice(WORDS['first'])} {rng.choice(WORDS['last'])}"


def _person(rng: Random) -> Case:
    name, age, city = _name(rng), rng.randint(18, 90), rng.choice(WORDS["cities"])
    text = rng.choice(
        [
            f"{name}, {age} years old, moved to {city} last year.",
            f"{name} lives in {city} and is {age} years old.",
            f"At the age of {age}, {name} opened a shop in {city}.",
        ]
    )
    answer = {"name": name, "age": age, "city": city}
    return Case(f"Extract name, age and city as JSON: {text}", answer)


def _order(rng: Random) -> Case:
    name, city, product = _name(rng), rng.choice(WORDS["cities"]), rng.choice(WORDS["products"])
    quantity, price = rng.randint(2, 40), rng.randint(100, 9999) / 100
    text = f"{name} from {city} ordered {quantity} {product} at {price} euros each."
    item = {"product": product, "quantity": quantity, "price": price}
    return Case(
        f"Extract the order as JSON: {text}", {"customer": {"name": name, "city": city}, "item": item}
    )


def _animals(rng: Random) -> Case:
    animals = rng.sample(WORDS["animals"], rng.randint(2, 7))
    with_article = [f"{'an' if animal[0] in 'aeo' else 'a'} {animal}" for animal in animals]
    text = f"{rng.choice(WORDS['first'])} saw {', '.join(with_article[:-1])} and {with_article[-1]}."
    return Case(f"List the animals of this text as JSON: {text}", {"animals": animals})


def _clothes(rng: Random) -> Case:
    size, color, material = (
        rng.choice(WORDS["sizes"]),
        rng.choice(WORDS["colors"]),
        rng.choice(WORDS["materials"]),
    )
    text = f"I am looking for a {size} {color} {rng.choice(WORDS['clothes'])} made of {material}."
    answer = {"size": size, "color": color, "material": material}
    return Case(f"Extract size, color and material as JSON: {text}", answer)


def _department(rng: Random) -> Case:
    department = rng.choice(list(DEPARTMENTS))
    concern, name = rng.choice(DEPARTMENTS[department]), _name(rng)
    text = f"{name} has a question about {concern}."
    return Case(f"Which department answers? Write JSON. {text}", {"name": name, "department": department})


def _rating(rng: Random) -> Case:
    name, stars, nights = _name(rng), rng.randint(1, 5), rng.randint(1, 5)
    text = f"{name} stayed {nights} nights and gave the hotel {stars} of 5 stars."
    return Case(
        f"Extract name, nights and stars as JSON: {text}", {"name": name, "nights": nights, "stars": stars}
    )


def _box(rng: Random) -> Case:
    weight, price, temperature = rng.randint(10, 999) / 10, rng.randint(50, 5000), rng.randint(-30, 30)
    text = f"The box weighs {weight} kg, costs {price} euros and must be kept at {temperature} degrees."
    answer = {"weight": weight, "price": price, "temperature": temperature}
    return Case(f"Extract weight, price and temperature as JSON: {text}", answer)


def _dates(rng: Random) -> Case:
    days = [(rng.randint(1940, 1990), rng.randint(1, 12), rng.randint(1, 28)) for _ in range(2)]
    born, hired = (f"{day} {WORDS['months'][month - 1]} {year}" for year, month, day in days)
    text = f"{rng.choice(WORDS['first'])} was born on {born}. The contract was signed on {hired}."
    answer = dict(zip(("born", "signed"), (f"{y}-{m:02}-{d:02}" for y, m, d in days), strict=True))
    return Case(f"Extract both dates as JSON: {text}", answer)


def _contact(rng: Random) -> Case:
    name, is_member = _name(rng), rng.random() < 0.5
    phone = f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}" if rng.random() < 0.5 else None
    email = f"{name.split()[0].lower()}@example.com" if rng.random() < 0.5 else None
    text = f"{name} is {'' if is_member else 'not '}a member."
    text += f" The phone number is {phone}." if phone else ""
    text += f" The email address is {email}." if email else ""
    answer = {"name": name, "member": is_member, "phone": phone, "email": email}
    return Case(f"Extract name, member, phone and email as JSON, null if missing: {text}", answer)


def _topic(rng: Random) -> Case:
    topic = rng.choice(list(TOPICS))
    word, name, city = rng.choice(TOPICS[topic]), rng.choice(WORDS["first"]), rng.choice(WORDS["cities"])
    text = rng.choice(
        [
            f"{name} talked about the {word} for an hour.",
            f"Have you read the article about {word} in {city}?",
            f"In {city} everybody remembers the {word}.",
        ]
    )
    return Case(f"Is this text about {', '.join(TOPICS)}? {text}", topic)


def _wind(rng: Random) -> Case:
    here, other = rng.sample(WORDS["directions"], 2)
    city = rng.choice(WORDS["cities"])
    text = f"In {city} the wind comes from the {here} today. Yesterday it came from the {other}."
    return Case(f"Where does the wind come from today? {text}", here)


def _timer(rng: Random) -> Case:
    if rng.random() < 0.5:
        minutes, label = rng.randint(2, 90), rng.choice(WORDS["chores"])
        call: Any = {"name": "set_timer", "arguments": {"minutes": minutes, "label": label}}
        return Case(f"Set a timer of {minutes} minutes for the {label}.", call)
    city, unit = rng.choice(WORDS["cities"]), rng.choice(["celsius", "fahrenheit"])
    call = {"name": "get_weather", "arguments": {"city": city, "unit": unit}}
    return Case(f"What is the weather in {city}? Tell me in {unit}.", call)


def _edit(rng: Random) -> Case:
    person = {
        "name": _name(rng),
        "age": rng.randint(18, 90),
        "city": rng.choice(WORDS["cities"]),
        "active": True,
    }
    name, value = rng.choice(
        [
            ("age", rng.randint(18, 90)),
            ("city", rng.choice(WORDS["cities"])),
            ("active", False),
            ("name", _name(rng)),
        ]
    )
    prompt = f"Change {name} to {json.dumps(value)} in this JSON: {json.dumps(person)}"
    return Case(prompt, {**person, name: value})


class _Function(NamedTuple):
    name: str
    parameters: list[str]
    summary: str
    """the first line of its docstring"""


@cache
def _library_functions() -> list[_Function]:
    """Documented functions of the standard library's modules, with two to eight positional parameters."""
    found: dict[str, _Function] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            parameters = [parameter.arg for parameter in node.args.args]
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            others = node.args.vararg or node.args.kwonlyargs or node.args.posonlyargs or node.args.kwarg
            if 2 <= len(parameters) <= 8 and not others and 20 <= len(summary) <= 80:
                found[node.name] = _Function(node.name, parameters, summary)
    return list(found.values())


def _signature(rng: Random) -> Case:
    function = rng.choice(_library_functions())
    line = f"def {function.name}({', '.join(function.parameters)}):"
    answer = {"function": function.name, "parameters": function.parameters}
    return Case(f"Extract the function and its parameters as JSON: {line}", answer)


def _passage(rng: Random) -> Case:
    functions = rng.sample(_library_functions(), 4)
    wanted = rng.choice(functions)
    lines = "\n".join(f"{function.name}: {function.summary}" for function in functions)
    question = f"Which function has the description {json.dumps(wanted.summary)}? Answer as JSON."
    return Case(f"{lines}\n\n{question}", {"function": wanted.name})


def tool(name: str, description: str, parameters: Schema) -> Schema:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = (
    tool("set_timer", "Starts a timer.", fields(minutes=INTEGER, label=STRING)),
    tool(
        "get_weather",
        "Tells the weather of a city.",
        fields(city=STRING, unit=one_of(["celsius", "fahrenheit"])),
    ),
)
CALL: Schema = {
    "anyOf": [
        fields(name={"const": tool["function"]["name"]}, arguments=tool["function"]["parameters"])
        for tool in TOOLS
    ]
}

TASKS = [
    Task("person", _person, fields(name=STRING, age=INTEGER, city=STRING)),
    Task("reversed", _person, fields(city=STRING, age=INTEGER, name=STRING)),
    Task(
        "nested",
        _order,
        fields(
            customer=fields(name=STRING, city=STRING),
            item=fields(product=STRING, quantity=INTEGER, price=NUMBER),
        ),
        examples=1,
        indent=2,
    ),
    Task("list", _animals, fields(animals=STRINGS), examples=3, indent=2, max_tokens=128),
    Task("signature", _signature, fields(function=STRING, parameters=STRINGS), examples=2, max_tokens=128),
    Task(
        "enum",
        _clothes,
        fields(
            size=one_of(WORDS["sizes"]), color=one_of(WORDS["colors"]), material=one_of(WORDS["materials"])
        ),
        examples=1,
    ),
    Task(
        "long enum",
        _department,
        fields(name=STRING, department=one_of(list(DEPARTMENTS))),
        examples=3,
        indent=2,
    ),
    Task(
        "listed numbers",
        _rating,
        fields(name=STRING, nights=INTEGER, stars=one_of([1, 2, 3, 4, 5])),
        examples=1,
    ),
    Task("numbers", _box, fields(weight=NUMBER, price=NUMBER, temperature=NUMBER)),
    Task("dates", _dates, fields(born=DATE, signed=DATE), examples=2, indent=2),
    Task(
        "null",
        _contact,
        fields(name=STRING, member=BOOLEAN, phone=STRING_OR_NULL, email=STRING_OR_NULL),
        examples=3,
    ),
    Task("topic", _topic, one_of(list(TOPICS)), examples=4, max_tokens=24, choices=tuple(TOPICS)),
    Task(
        "prefix choice",
        _wind,
        one_of(WORDS["directions"]),
        examples=1,
        max_tokens=24,
        choices=tuple(WORDS["directions"]),
    ),
    Task("passage", _passage, fields(function=STRING), examples=2),
    Task("tool call", _timer, CALL, examples=4, tools=TOOLS),
    Task("edit", _edit, fields(name=STRING, age=INTEGER, city=STRING, active=BOOLEAN), examples=1),
]
