"""Measures how right a model's answers are when they are constrained, compared with its free answers.

    python bench/answers.py MODEL.gguf --out ours.json
    python bench/answers.py --server http://127.0.0.1:8080 --label llama.cpp --mode free --out peer.json
    python bench/answers.py --compare ours.json peer.json --reference "arbora: free"

It asks questions with known answers (`lib/answer_tasks.py`), made from seeds and from the functions of
Python's standard library, at temperature 0. Each mode asks all of them with another constraint:

free         none; the value is looked for in the text, also in a code block or in Python's spelling
json_schema, json_object, tools       the usual fields of a request
regex, choice, grammar (Lark's %json) fields of Arbora and vLLM
shown        the schema or the choices are in the system prompt too
style=…      compact, spaced or indented: the white space that a regex prescribes
field=value  any other field, such as property_order=any, tool_choice=required, or logprobs=true, with which
             Arbora samples forced text token by token; with top_logprobs=1 too the tables count the tokens
             that the constraint overruled, and the log-probability (nats) that a reply lost by them

A score is the share of an answer's fields that are right, in percent; of a list the share of its items and
whether it has the right length; of a call with the wrong name nothing. In brackets stands the paired
difference from the reference's score on the same questions with its 95 % interval; it is bold if the score
is lower and the interval excludes zero.
`unread` counts replies without a value of the wanted form, `cut` those that reached max_tokens. Without
`--server` it starts `arbora serve MODEL`. Ask a server only in modes whose fields it knows.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).parent / "lib"))
from answer_modes import Body, Mode, parse_mode
from answer_reading import read_choice, read_json, score
from answer_report import Reply, load, report, save
from answer_tasks import TASKS, Case, Task
from server_process import exit_on_sigterm, serve_arbora

KINDS = [
    "free",
    "json_schema",
    "json_schema property_order=any",
    "json_object",
    "regex style=compact",
    "regex style=spaced",
    "regex style=indented",
    "grammar",
    "choice",
    "tools tool_choice=auto",
    "tools tool_choice=required",
]
SAMPLED = [
    f"{kind} logprobs=true top_logprobs=1"
    for kind in ("json_schema", "regex style=spaced", "choice", "tools tool_choice=required")
]
SHOWN = [kind.replace(" ", " shown ", 1) if " " in kind else f"{kind} shown" for kind in KINDS]
DEFAULT_MODES = [*KINDS, *SAMPLED, *SHOWN]


class Asker:
    """A client of one server that keeps several requests in flight."""

    def __init__(self, url: str, in_flight: int) -> None:
        # A connection for each request: some servers close idle ones, and the next request is lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        base = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(base_url=base, timeout=600, limits=limits)
        self._gate = asyncio.Semaphore(in_flight)
        self._model = ""

    async def open(self) -> None:
        """Waits until a server that is starting has loaded its model."""
        while (await self._http.get("/health")).status_code == httpx.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(1)
        answer = (await self._http.get("/v1/models")).raise_for_status()
        self._model = answer.json()["data"][0]["id"]

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, task: Task, mode: Mode, case: Case) -> Reply | None:
        body = mode.body(task, case)
        if body is None:
            return None
        async with self._gate:
            begun = time.perf_counter()
            answer = await self._http.post("/v1/chat/completions", json={"model": self._model, **body})
            seconds = time.perf_counter() - begun
        about = (task.name, mode.name, case.prompt)
        if answer.status_code != 200:
            return Reply(
                *about, "", [], "", 0, seconds, False, {}, error=f"{answer.status_code}: {answer.text[:500]}"
            )
        return read_reply(task, mode, case, answer.json(), seconds)


def read_reply(task: Task, mode: Mode, case: Case, answer: Body, seconds: float) -> Reply:
    choice = answer["choices"][0]
    text = choice["message"].get("content") or ""
    calls = choice["message"].get("tool_calls") or []
    if mode.kind == "tools":
        value = value_of_call(calls[0]) if calls else None
    else:
        value = read_choice(text, task.choices) if task.choices else read_json(text, list(case.answer))
    if task.tools and (not isinstance(value, dict) or value.get("name") != case.answer["name"]):
        value = None  # the arguments of another function are of no use
    return Reply(
        task.name,
        mode.name,
        case.prompt,
        text,
        calls,
        choice["finish_reason"],
        answer["usage"]["completion_tokens"],
        round(seconds, 4),
        value is not None,
        score(case.answer, value),
        *preference((choice.get("logprobs") or {}).get("content") or []),
    )


def preference(tokens: Sequence[Body]) -> tuple[int | None, float | None]:
    """How many sampled tokens the model liked less than another, and by how much log-probability together.

    Both are None if the reply has no alternatives.
    """
    gaps = [_gap(token) for token in tokens if token.get("top_logprobs")]
    return (sum(gap > 0 for gap in gaps), round(sum(gaps), 3)) if gaps else (None, None)


def _gap(token: Body) -> float:
    best = max(other["logprob"] for other in token["top_logprobs"])
    return float(max(0.0, best - token["logprob"]))


def value_of_call(call: Body) -> Any:
    arguments = call["function"]["arguments"]
    return {"name": call["function"]["name"], "arguments": read_json(arguments, []) or {}}


async def measure(url: str, options: argparse.Namespace) -> list[Reply]:
    asker = Asker(url, options.in_flight)
    await asker.open()
    replies: list[Reply] = []
    for task in options.tasks:
        cases = task.cases(options.cases)
        for mode in options.modes:
            jobs = (asker.ask(task, mode, case) for case in cases)
            found = [reply for reply in await asyncio.gather(*jobs) if reply]
            replies += found
            failed = [reply.error for reply in found if reply.error]
            if failed:
                print(f"{task.name}, {mode.name}: {len(failed)} failed: {failed[0]}", file=sys.stderr)
        print(f"{task.name} is measured", file=sys.stderr, flush=True)
        if options.out:
            save(
                options.out, options.label, {"cases": options.cases, "in_flight": options.in_flight}, replies
            )
    await asker.close()
    return replies


@contextmanager
def address(options: argparse.Namespace) -> Iterator[str]:
    """The address of `--server`, or of a server that runs as long as the context."""
    if options.server:
        yield options.server
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serve_arbora(log, options.model, *shlex.split(options.serve)) as server:
            yield server.url


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a checkpoint or GGUF file for `arbora serve`")
    parser.add_argument("--server", metavar="URL", help="a server that runs, in place of a model")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more options of `arbora serve`")
    parser.add_argument("--label", default="arbora", help="the server's name in tables (default: arbora)")
    parser.add_argument("--cases", type=int, default=200, help="of each task (default: 200)")
    parser.add_argument("--in-flight", type=int, default=8, help="requests in flight (default: 8)")
    parser.add_argument(
        "--task", action="append", help=f"may be repeated; of {', '.join(t.name for t in TASKS)}"
    )
    parser.add_argument(
        "--mode", action="append", help=f"may be repeated; default: {'; '.join(DEFAULT_MODES)}"
    )
    parser.add_argument("--out", type=Path, help="writes all replies to this file")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FILE", help="only compares such files")
    parser.add_argument(
        "--reference", default="", help="the row that others are compared with (default: the first)"
    )
    options = parser.parse_args(arguments)
    if not (options.compare or options.server or options.model):
        parser.error("give a MODEL, --server URL, or --compare FILE …")
    if options.cases < 2 or options.in_flight < 1:
        parser.error("--cases must be at least 2 and --in-flight at least 1")
    names = {task.name: task for task in TASKS}
    unknown = [name for name in options.task or () if name not in names]
    if unknown:
        parser.error(f"--task {unknown[0]}: must be one of {', '.join(names)}")
    options.tasks = [names[name] for name in options.task or names]
    try:
        options.modes = [parse_mode(text) for text in options.mode or DEFAULT_MODES]
    except ValueError as error:
        parser.error(f"--mode: {error}")
    return options


def main() -> None:
    exit_on_sigterm()
    options = parse()
    if options.compare:
        files = load(options.compare)
    else:
        with address(options) as url:
            files = {options.label: asyncio.run(measure(url, options))}
    print(report(files, options.reference))


if __name__ == "__main__":
    main()
