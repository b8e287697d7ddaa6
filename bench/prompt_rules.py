"""Measures what a volatile line in the system prompt costs, without and with the rule that takes it out.

A conversation in the shape of an agent's client has three tools, three system blocks and some turns, with
the result of a tool in each. The billing line, or a line with the time, differs in each request. The table
has the tokens of each prompt that were computed, what of them the server's explanation blames on the line,
and the seconds to the whole reply. The server is started for each case.
Run: PYTHONSAFEPATH=1 python bench/prompt_rules.py [MODEL]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent / "lib"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from claude_code import HEADERS, first_turn, next_turn
from compared_servers import ServerCommand
from server_process import start

CASES = {
    "the same line": ((), "x-anthropic-billing-header: cc_version=2.1.0.5f1; cch=1f2e3;"),
    "billing line": ((), "x-anthropic-billing-header: cc_version=2.1.0.5f1; cch=1f2e{turn};"),
    "billing line, billing-header": (
        ("--prompt-rules", "billing-header"),
        "x-anthropic-billing-header: cc_version=2.1.0.5f1; cch=1f2e{turn};",
    ),
    "time": ((), "Current time: 2026-11-23 10:3{turn}:00"),
    "time, time-line": (("--prompt-rules", "time-line"), "Current time: 2026-11-23 10:3{turn}:00"),
}


class Turn(NamedTuple):
    prompt: int
    cached: int
    volatile: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", help="a model (default: the built-in one)")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    print("| line, rule | turn | prompt tokens | computed | blamed on the line | seconds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as logs:
        for name, (flags, line) in CASES.items():
            model = [arguments.model] if arguments.model else []
            command = [sys.executable, "-m", "arbora", "serve", *model, *flags]
            with start(ServerCommand(name, command, {"PYTHONSAFEPATH": "1"}), Path(logs)) as server:
                for number, turn in enumerate(turns(server.url, line, arguments.turns), 1):
                    computed = turn.prompt - turn.cached
                    figures = f"{turn.prompt} | {computed} | {turn.volatile} | {turn.seconds:.2f}"
                    print(f"| {name} | {number} | {figures} |", flush=True)


def turns(url: str, line: str, count: int) -> Sequence[Turn]:
    request = first_turn("", 16)
    request["tools"] = request["tools"][:3]
    for name in ("thinking", "stream", "model"):
        del request[name]
    found = []
    for number in range(count):
        system = [{"type": "text", "text": line.format(turn=number)}, *request["system"][1:]]
        begun = time.perf_counter()
        reply = post(url, {**request, "system": system, "explain_cache": True})
        explained = reply["cache_explanation"]
        found.append(
            Turn(
                explained["prompt_tokens"],
                explained["matched_tokens"],
                explained["causes"].get("volatile", 0),
                time.perf_counter() - begun,
            )
        )
        request = next_turn(request, [*said(number)], {f"toolu_{number}": result(number)})
    return found


def said(number: int) -> list[Any]:
    """An assistant's message, the same whatever the model replied."""
    call = {
        "type": "tool_use",
        "id": f"toolu_{number}",
        "name": "Bash",
        "input": {"command": "wc -l src/*", "timeout": 9},
    }
    return [{"type": "text", "text": "I look at the files."}, call]


def result(turn: int) -> str:
    return "\n".join(f"src/turn_{turn}/module_{number}.py: {number * 7} lines" for number in range(8))


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/messages", json.dumps(body).encode(), {**HEADERS, "content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(error.read().decode())


if __name__ == "__main__":
    main()
