"""Sends the requests that schemathesis generates from a server's /openapi.json and checks the answers.

    python bench/document_fuzz.py --bodies 10000 --out document-fuzz.md

Starts `arbora serve` with the built-in model, a short context and a data directory of its own. Half of the
bodies are valid by the document, and half of those are reduced to a few fields, so that more of them are
served. The run fails if an answer has a status of 500 or above, a status or media type that the document
lacks, or a body or an event of a stream that does not match its schema; or if a process ends. Another
`--seed` gives other requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path += [str(Path(__file__).parent / "lib"), str(Path(__file__).parents[1] / "tests" / "support")]
from generated_requests import DocumentFuzz, Outcome
from reports import commit, date, machine, table
from rest_check import wrong_at_end
from server_process import exit_on_sigterm, main_pids, serve_arbora

SERVER = ("--dtype", "float32", "--max-model-len", "384", "--kv-memory", "16MiB", "--debug", "invariants")
PART = 500


def report(options: argparse.Namespace, outcome: Outcome, wrong: list[str], seconds: float) -> str:
    faults = "\n".join(f"- {kind}\n\n      {text}" for kind, text in outcome.faults.items())
    packages = ", ".join(f"{name} {version(name)}" for name in ("schemathesis", "hypothesis"))
    return "\n\n".join(
        [
            f"# Requests generated from /openapi.json, {date()}",
            f"{machine()}. {packages}. Commit {commit()}.",
            f"    python bench/document_fuzz.py {' '.join(sys.argv[1:])}",
            f"{outcome.bodies} bodies and {outcome.events} events of streams in {seconds:.0f} s, seed "
            f"{options.seed}.",
            table(["operation", "bodies", "answers by status"], outcome.table()),
            f"Wrong: {len(wrong) + len(outcome.faults)}.",
            "\n".join(f"- {each}" for each in wrong) + faults,
        ]
    )


def run(options: argparse.Namespace) -> bool:
    with TemporaryDirectory() as data:
        return _run(options, data)


def _run(options: argparse.Namespace, data: str) -> bool:
    server = serve_arbora(options.out.with_suffix(".log"), *SERVER, "--data-dir", data)
    try:
        started, pids = time.monotonic(), main_pids(server.pid)
        fuzz = DocumentFuzz(server.url, options.seed)
        fuzz.without_bodies(20)
        while (left := options.bodies - fuzz.outcome.bodies) > 0:
            fuzz.with_bodies(min(PART, left))
            print(f"{fuzz.outcome.bodies} bodies, {len(fuzz.outcome.faults)} faults", flush=True)
        seconds = time.monotonic() - started
        fuzz.end_pins()
        wrong = wrong_at_end(server, pids)
        wrong += [f"no body was sent to {label}" for label in fuzz.without_any]
    finally:
        server.stop()
    text = report(options, fuzz.outcome, wrong, seconds).rstrip()
    options.out.write_text(text + "\n")
    print(text)
    return not (wrong or fuzz.outcome.faults)


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("document-fuzz.md"))
    sys.exit(0 if run(parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
