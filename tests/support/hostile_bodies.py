"""Bodies of which some count, length or depth is extreme, by name: legal JSON below the limit of 32 MiB.

None may end or stall a process of the server: each is answered within a bound, and others go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_HELLO = '"messages":[{"role":"user","content":"Hello"}],"max_tokens":4'
_TOOL = '{"type":"function","function":{"name":"%s"}}'
_MIB = 1 << 20


class HostileBody(NamedTuple):
    path: str
    body: bytes


def hostile_bodies(share: float = 1.0) -> Iterator[tuple[str, HostileBody]]:
    """All of them. `share` of their full size of up to 30 MiB."""
    for name, make in BODIES.items():
        yield name, make(share)


def _chat(field: str) -> HostileBody:
    return HostileBody(CHAT, f"{{{_HELLO},{field}}}".encode())


def _completion(field: str) -> HostileBody:
    return HostileBody(COMPLETION, f'{{"max_tokens":4,{field}}}'.encode())


def _tools(share: float, *fields: str) -> str:
    return ",".join(
        ('"tools":[' + ",".join(_TOOL % f"f{i}" for i in range(int(400_000 * share))) + "]", *fields)
    )


def _messages(share: float, role: str = "user") -> str:
    message = f'{{"role":"{role}","content":""}}'
    return '"messages":[' + ",".join([message] * int(840_000 * share)) + "]"


def _text(share: float, piece: str = "the cat sat on a mat ") -> str:
    return json.dumps(piece * int(28 * _MIB * share / len(json.dumps(piece))))


def _list(value: str, count: float) -> str:
    return "[" + ",".join([value] * int(count)) + "]"


def _deep(share: float) -> str:
    depth = int(10 * _MIB * share)
    return "[" * depth + "]" * depth


def _fields(share: float) -> str:
    return ",".join(f'"u{i}":0' for i in range(int(2_000_000 * share)))


def _deep_tag(depth: int) -> str:
    inner = '{"type":"any_text"}'
    for _ in range(depth):
        inner = f'{{"type":"tag","begin":"<a>","content":{inner},"end":"</a>"}}'
    return f'"response_format":{{"type":"structural_tag","format":{inner}}}'


BODIES: dict[str, Callable[[float], HostileBody]] = {
    "tools": lambda share: _chat(_tools(share)),
    "tools with no choice": lambda share: _chat(_tools(share, '"tool_choice":"none"')),
    "tools of one name": lambda share: _chat('"tools":' + _list(_TOOL % "f", 400_000 * share)),
    "tools to tokenize": lambda share: HostileBody("/tokenize", f"{{{_HELLO},{_tools(share)}}}".encode()),
    "allowed tools": lambda share: _chat(
        '"tools":[' + _TOOL % "f" + '],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",'
        f'"tools":{_list(_TOOL % "f", 400_000 * share)}}}}}'
    ),
    "text to tokenize": lambda share: HostileBody("/tokenize", f'{{"prompt":{_text(share)}}}'.encode()),
    "text without spaces": lambda share: HostileBody(
        "/tokenize", f'{{"prompt":{_text(share, "x")}}}'.encode()
    ),
    "text of specials": lambda share: _completion(f'"prompt":{_text(share, "<|im_end|>")}'),
    "text of accents": lambda share: _completion(f'"prompt":{_text(share, "á̖̗̘")}'),
    "chat": lambda share: HostileBody(
        CHAT, f'{{"messages":[{{"role":"user","content":{_text(share)}}}]}}'.encode()
    ),
    "messages": lambda share: HostileBody(CHAT, f'{{"max_tokens":4,{_messages(share)}}}'.encode()),
    "system messages to pin": lambda share: HostileBody(
        "/cache/pin", f'{{"ttl_s":1,{_messages(share, "system")}}}'.encode()
    ),
    "content parts": lambda share: HostileBody(
        CHAT,
        b'{"messages":[{"role":"user","content":%s}]}'
        % _list('{"type":"text","text":""}', 1_000_000 * share).encode(),
    ),
    "calls in a message": lambda share: HostileBody(
        CHAT,
        b'{"messages":[{"role":"assistant","tool_calls":%s}]}'
        % _list('{"function":{"name":"f","arguments":"{}"}}', 500_000 * share).encode(),
    ),
    "lists in template variables": lambda share: _chat(
        f'"chat_template_kwargs":{{"x":{_list("[]", 5_000_000 * share)}}}'
    ),
    "depth in template variables": lambda share: _chat(f'"chat_template_kwargs":{{"x":{_deep(share)}}}'),
    "depth in metadata": lambda share: _chat(f'"metadata":{_deep(share)}'),
    "depth in an unknown field": lambda share: _chat(f'"unknown":{_deep(share)}'),
    "depth of the body": lambda share: HostileBody(CHAT, _deep(share).encode()),
    "depth of a structural tag": lambda share: _chat(_deep_tag(18)),
    "long stop strings": lambda share: _chat(f'"stop":{_list(json.dumps("x" * int(1_900_000 * share)), 16)}'),
    "stop strings": lambda share: _chat(f'"stop":{_list(chr(34) + "a" + chr(34), 5_000_000 * share)}'),
    "stop ids": lambda share: _chat(f'"stop_token_ids":{_list("5", 10_000_000 * share)}'),
    "biased ids": lambda share: _chat(
        '"logit_bias":{' + ",".join(f'"{i}":1' for i in range(int(1_500_000 * share))) + "}"
    ),
    "choices": lambda share: _chat(f'"choice":{_list(chr(34) + "ab" + chr(34), 5_000_000 * share)}'),
    "unknown fields": lambda share: _chat(_fields(share)),
    "fields of a format": lambda share: _chat(f'"response_format":{{"type":"text",{_fields(share)}}}'),
    "one field many times": lambda share: _chat(",".join(['"seed":1'] * int(3_000_000 * share))),
    "ids to detokenize": lambda share: HostileBody(
        "/detokenize", f'{{"tokens":{_list("5", 10_000_000 * share)}}}'.encode()
    ),
    "fractions to detokenize": lambda share: HostileBody(
        "/detokenize", f'{{"tokens":{_list("5.0", 7_000_000 * share)}}}'.encode()
    ),
    "ids of a prompt": lambda share: _completion(f'"prompt":{_list("5", 10_000_000 * share)}'),
    "fractions of a prompt": lambda share: _completion(f'"prompt":{_list("5.0", 7_000_000 * share)}'),
    "prompts": lambda share: _completion(f'"prompt":{_list(chr(34) + "a" + chr(34), 5_000_000 * share)}'),
    "prompts of ids": lambda share: _completion(f'"prompt":{_list("[5]", 5_000_000 * share)}'),
    "digits": lambda share: _chat(f'"seed":{"1" * int(28 * _MIB * share)}'),
    "white space": lambda share: _chat('"seed":1' + " " * int(28 * _MIB * share)),
    "escapes": lambda share: _chat('"user":"' + "\\u00e9" * int(4_500_000 * share) + '"'),
    "a long salt": lambda share: _chat(f'"cache_salt":{_text(share)}'),
    "a long model": lambda share: _chat(f'"model":{_text(share)}'),
    "a long name of a field": lambda share: _chat(f"{_text(share)}:1"),
    "a long tool": lambda share: _chat(
        f'"tools":[{{"type":"function","function":{{"name":"f","description":{_text(share)}}}}}]'
    ),
    "a long regex": lambda share: _chat(f'"regex":{_text(share, "(a|b)")}'),
    "a long grammar": lambda share: _chat(f'"grammar":{_text(share, "start: start ")}'),
    "a schema in a string": lambda share: _chat(f'"json_schema":{json.dumps(_deep(share / 3))}'),
    "a wide schema": lambda share: _chat(
        '"json_schema":{"type":"object","properties":{'
        + ",".join(f'"p{i}":{{"type":"integer"}}' for i in range(int(1_000_000 * share)))
        + "}}"
    ),
}
