"""What every answer to any request must have: a documented status, and errors that name a field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fuzz_bodies import Case
from raw_http import Answer

_API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")
_ANY = ("...", "…", "")  # any element of a list or value of an object


def documented_statuses() -> frozenset[int]:
    """The statuses in the table of errors of the API's page."""
    rows = re.findall(r"^\| ([0-9, ]+) \|", _API_PAGE.read_text(), re.MULTILINE)
    return frozenset(int(status) for row in rows for status in row.split(","))


def fault_of(case: Case, answer: Answer, known_fields: frozenset[str]) -> str | None:
    """The fault of an answer, or None. `known_fields` are the API's names."""
    if answer.status >= 500 and answer.status != 503:
        return f"status {answer.status}"
    if answer.status != 200:
        return _fault_of_error(case, answer, known_fields)
    if case.method == "HEAD" or not case.path.startswith(("/v1/c", "/tok", "/detok", "/cache")):
        return None
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return _fault_of_stream(answer.body)
    if kind.startswith("application/json") and _decoded(answer.body) is not None:
        return None
    return f"an answer of the type {kind!r} that is no JSON"


def _fault_of_error(case: Case, answer: Answer, known_fields: frozenset[str]) -> str | None:
    if answer.status not in documented_statuses():
        return f"the status {answer.status} is not documented"
    if answer.status in (429, 503) and not answer.headers.get("retry-after", "").isdigit():
        return "no Retry-After"
    if case.method == "HEAD":
        return None
    found = _decoded(answer.body)
    if case.path.startswith("/api/"):
        return _fault_of_ollama_error(found) or _fault_of_param(case, found, known_fields)
    return _fault_of_error_object(found, answer.status) or _fault_of_param(case, found["error"], known_fields)


def _fault_of_ollama_error(found: Any) -> str | None:
    if not isinstance(found, dict) or set(found) != {"error", "code", "param"}:
        return "the body is not {'error': …, 'code': …, 'param': …}"
    if not isinstance(found["error"], str) or not found["error"]:
        return "the error has no message"
    return _fault_of_code(found)


def _fault_of_error_object(found: Any, status: int) -> str | None:
    if not isinstance(found, dict) or set(found) != {"error"} or not isinstance(found["error"], dict):
        return "the body is not {'error': {…}}"
    error = found["error"]
    if set(error) != {"message", "type", "param", "code"}:
        return f"the error has the fields {sorted(error)}"
    if not isinstance(error["message"], str) or not error["message"]:
        return "the error has no message"
    expected = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    if error["type"] != expected:
        return f"the type is {error['type']!r}, not {expected!r}"
    return _fault_of_code(error)


def _fault_of_code(error: dict[str, Any]) -> str | None:
    if error["param"] is not None and not isinstance(error["param"], str):
        return f"param is {error['param']!r}"
    if not isinstance(error["code"], str) or not re.fullmatch("[a-z0-9_]+", error["code"]):
        return f"the code is {error['code']!r}"
    return None


def _fault_of_stream(body: bytes) -> str | None:
    events = [event for event in body.decode(errors="replace").split("\n\n") if event]
    for place, event in enumerate(events):
        if event.startswith(":"):
            continue
        if not event.startswith("data: "):
            return f"an event that begins {event[:60]!r}"
        if event == "data: [DONE]":
            return None if place == len(events) - 1 else "an event after [DONE]"
        found = _decoded(event.removeprefix("data: ").encode())
        if not isinstance(found, dict):
            return f"an event that is no JSON: {event[:60]!r}"
        if "error" in found:
            return _fault_of_event_error(found, is_last=place == len(events) - 1)
    return "a stream that ends with neither [DONE] nor an error"


def _fault_of_event_error(found: dict[str, Any], *, is_last: bool) -> str | None:
    if not is_last:
        return "an event after an error"
    status = 500 if found["error"].get("type") == "server_error" else 400
    if found["error"].get("code") == "internal_error":
        return f"an internal error in a stream: {found}"
    return _fault_of_error_object(found, status)


def _fault_of_param(case: Case, error: dict[str, Any], known_fields: frozenset[str]) -> str | None:
    """`param` must be a field of the API or lead to a value of the body, unless that value is missing."""
    param, query = error["param"], case.path.partition("?")[2]
    if param is None or param in known_fields or f"&{param}=" in f"&{query}":
        return None
    is_missing = error["code"] == "missing_field"
    return _fault_of_path(case, param, _STEP.findall(param), is_missing=is_missing)


def _fault_of_path(case: Case, param: str, steps: list[str], *, is_missing: bool) -> str | None:
    try:
        tree = json.loads(case.body or b"")
    except (ValueError, RecursionError):
        return None  # cut, or nested too deep for this check
    for place, step in enumerate(steps):
        name = step.strip("[]")
        if isinstance(tree, str) or name in _ANY:
            return None
        if isinstance(tree, list) and name.isdigit() and int(name) < len(tree):
            tree = tree[int(name)]
        elif isinstance(tree, dict) and name in tree:
            tree = tree[name]
        elif is_missing or (isinstance(tree, dict) and place == len(steps) - 1):
            return None
        else:
            return f"param is {param!r}, which the body does not have"
    return None


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
