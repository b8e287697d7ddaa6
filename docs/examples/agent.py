"""An agent that answers questions with tools: a calculator, and a table of records."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable

import arbora as ab
from example_options import connected, parser, print_cached_share

RECORDS = {
    "apples": {"price": 3, "stock": 120},
    "pears": {"price": 4, "stock": 35},
}
QUESTIONS = ["What do 12 apples cost?", "And 12 pears?", "What are all pears in stock worth?"]
OPERATIONS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> float:
    """The value of an expression of numbers, + - * / and brackets."""
    return value_of(ast.parse(expression, mode="eval").body)


def look_up(product: str) -> dict[str, int]:
    """Price and stock of a product."""
    return RECORDS[product]


TOOLS: dict[str, Callable[..., object]] = {"calculate": calculate, "look_up": look_up}


def value_of(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left, operation, right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](value_of(left), value_of(right))
    raise ValueError("only numbers, + - * / and brackets are allowed")


def answer(name: str, arguments: str) -> object:
    """What a tool returns, or its error: the model reads either."""
    try:
        return TOOLS[name](**json.loads(arguments))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


@ab.program
def agent(s: ab.State, questions: list[str], rounds: int) -> None:
    s += ab.system("You sell fruit. Look up prices and calculate; never guess.")
    for number, question in enumerate(questions):
        s += ab.user(question)
        for turn in range(rounds):
            choice = "required" if turn == 0 else "auto"
            name = f"turn {number}.{turn}"
            s += ab.assistant(ab.gen(name, tools=list(TOOLS.values()), tool_choice=choice, max_tokens=64))
            if not s.tool_calls(name):
                break
            for call in s.tool_calls(name):
                s += ab.tool(call, answer(call.name, call.arguments))
        else:
            s += ab.assistant(ab.gen(f"answer {number}", max_tokens=32))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=2, help="replies with calls, for each question")
    state = agent.run(QUESTIONS, connected(options).rounds)
    for message in state.messages():
        print(f"{message['role']:>9}: {message['content']!r}", *message.get("tool_calls", ()))
    print_cached_share([state])
