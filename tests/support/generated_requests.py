"""Requests that schemathesis generates from a server's /openapi.json, and checks of the answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = ("text/event-stream", "application/x-ndjson")
PATIENCE = 120.0  # seconds
MAX_SHOWN = 600  # characters of a request in a fault
NEEDED = ("messages", "prompt", "input", "tokens", "ttl_s", "max_tokens")


@dataclass
class Outcome:
    """The counts of requests with a body by operation, of all answers by operation and status, and of the
    events of streams. `faults` has the first request and the problem for each kind of fault."""

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    events: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def bodies(self) -> int:
        return self.sent.total()

    def statuses(self) -> Counter[int]:
        found = Counter[int]()
        for (_, status), count in self.answers.items():
            found[status] += count
        return found

    def table(self) -> list[tuple[str, int, str]]:
        """Each operation with its bodies and its answers by status."""
        rows = []
        for label in sorted({label for label, _ in self.answers}):
            answers = sorted((status, n) for (name, status), n in self.answers.items() if name == label)
            rows.append((label, self.sent[label], ", ".join(f"{status}: {n}" for status, n in answers)))
        return rows


class DocumentFuzz:
    """Sends generated requests to a server and collects the faults of its answers."""

    def __init__(self, url: str, number: int, document: Any = None) -> None:
        """`document` is used in place of the server's own."""
        self.outcome = Outcome()
        self._url = url
        self._seed = number
        self._rounds = 0
        self._first = 0
        self._document = document or requests.get(f"{url}/openapi.json", timeout=PATIENCE).json()
        self._operations = [_operation(found) for found in from_dict(self._document).get_all_operations()]
        self._session = requests.Session()

    def without_bodies(self, count: int) -> None:
        """Sends up to `count` requests to each operation that takes no body."""
        for operation in self._operations:
            if not operation.body:
                self._send(operation, GenerationMode.POSITIVE, count)

    def with_bodies(self, count: int, path: str | None = None) -> None:
        """Sends `count` further bodies: to each operation (of `path`) as many, half of them valid by the
        document. The first body of each call is the simplest one, so a call for few bodies finds little."""
        operations = [found for found in self._operations if found.body and path in (None, found.path)]
        turns = [(operation, mode) for operation in operations for mode in MODES]
        last = self.outcome.bodies + count
        while (left := last - self.outcome.bodies) > 0:
            for (operation, mode), share in zip(turns, shares(left, len(turns), self._first), strict=True):
                self._send(operation, mode, share)
            self._first = (self._first + left) % len(turns)

    @property
    def without_any(self) -> list[str]:
        """The operations with bodies that no body was sent to."""
        labels = [operation.label for operation in self._operations if operation.body]
        return [label for label in labels if not self.outcome.sent[label]]

    def end_pins(self) -> None:
        """Ends the pins that requests have made."""
        for pin in self._session.get(f"{self._url}/cache", timeout=PATIENCE).json()["pins"]:
            self._session.delete(f"{self._url}/cache/pin/{pin['id']}", timeout=PATIENCE).raise_for_status()

    def _send(self, operation: Any, mode: GenerationMode, count: int) -> None:
        if count <= 0:
            return
        self._rounds += 1

        @seed(f"{self._seed}/{self._rounds}")
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(mode))
        def each(case: Any) -> None:
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                is_ollama = case.operation.path.startswith("/api/")
                case.body = thinned(case.body, Random(repr(case.body)), is_ollama=is_ollama)
            self._ask(case)

        each()

    def _ask(self, case: Any) -> None:
        label = case.operation.label
        response = case.call(base_url=self._url, session=self._session, timeout=PATIENCE)
        self.outcome.answers[label, response.status_code] += 1
        if case.operation.body:
            self.outcome.sent[label] += 1
        media_type = response.headers.get("content-type", [""])[0].partition(";")[0]
        is_stream = media_type in STREAMS
        try:
            checks = CHECKS[:3] if is_stream else CHECKS
            case.validate_response(response, checks=checks)
            if is_stream:
                self._check_events(case.operation, media_type, response.content)
        except (FailureGroup, AssertionError) as error:
            problems = getattr(error, "exceptions", [error])
            for problem in problems:
                kind = f"{label} {response.status_code}: {type(problem).__name__} {_first_line(problem)}"
                self.outcome.faults.setdefault(kind, case.as_curl_command()[:MAX_SHOWN] + f"\n{problem}")

    def _check_events(self, operation: Any, media_type: str, stream: bytes) -> None:
        content = operation.definition.raw["responses"]["200"]["content"]
        schema = {**content[media_type]["schema"], "components": self._document["components"]}
        validator = Draft202012Validator(schema)
        for event in events_of(stream):
            self.outcome.events += 1
            assert validator.is_valid(event), f"an event does not match its schema: {event}"


def shares(count: int, parts: int, first: int) -> list[int]:
    """`count` divided evenly. The parts from `first` on, then those at the start, get the rest, one each."""
    each, rest = divmod(count, parts)
    return [each + ((part - first) % parts < rest) for part in range(parts)]


def _operation(found: Any) -> Any:
    assert isinstance(found, Ok), found.err()
    return found.ok()


def thinned(body: dict[str, Any], random: Random, *, is_ollama: bool = False) -> dict[str, Any]:
    """Half of the bodies unchanged; of the others the required fields and a few more, so that some are
    served: of a body with many fields some contradict each other."""
    if random.random() < 0.5:
        return body
    kept = {name: body[name] for name in NEEDED if name in body}
    extra = [name for name in body if name not in (*NEEDED, "model")]
    kept |= {name: body[name] for name in random.sample(extra, min(len(extra), random.randrange(4)))}
    if "messages" in kept and random.random() < 0.7:
        kept["messages"] = [{"role": "user", "content": random.choice(["Hello", "", "Ä\u0000<|im_end|>"])}]
    if "messages" in kept or "prompt" in kept:
        kept["stream"] = random.random() < 0.5
        most = random.randrange(1, 9)
        kept |= {"options": {"num_predict": most}} if is_ollama else {"max_tokens": most}
    elif "input" in kept:
        kept |= {"stream": random.random() < 0.5, "max_output_tokens": random.randrange(1, 9)}
        if random.random() < 0.7:
            kept["input"] = random.choice(["Hello", "Ä\u0000<|im_end|>"])
    return kept


def events_of(stream: bytes) -> Iterator[Any]:
    """The JSON of each event or line of a stream but the last event, `[DONE]`."""
    for line in stream.decode().split("\n"):
        name, _, data = line.partition(": ")
        if line.startswith("{"):
            yield json.loads(line)
        elif name == "data" and data != "[DONE]":
            yield json.loads(data)


def _first_line(problem: object) -> str:
    return (str(problem).strip().splitlines() or [""])[0][:200]
