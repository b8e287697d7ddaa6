"""docs/ollama.md lists the fields and options as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from arbora.frontend.api.ollama import fields
from arbora.frontend.api.ollama.protocol import ChatRequest, GenerateRequest, Options
from arbora.frontend.api.ollama.routes import NOT_SERVED
from msgspec import Raw

PAGE = (Path(__file__).parents[4] / "docs" / "ollama.md").read_text()
CHAT, GENERATE = set(ChatRequest.__struct_fields__), set(GenerateRequest.__struct_fields__)
RAW = {field.name for field in msgspec.structs.fields(Options) if field.type is Raw}


def row(title: str) -> set[str]:
    """The names in code in a row of the table of fields."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title} |")]
    return {name for code in re.findall("`([^`]*)`", line) for name in code.split()}


def test_all_fields_are_listed() -> None:
    assert row("served in both") | row("served in both, Arbora's") == CHAT & GENERATE
    assert row("served in chats") == CHAT - GENERATE
    assert row("served in generate") == GENERATE - CHAT
    assert row("accepted with one warning in the log") == set(fields.INERT.hints)
    assert row("refused unless empty") == set(fields.INERT.fixed)


def test_all_options_are_listed() -> None:
    refused, inert = set(fields.FIXED_OPTIONS), RAW - set(fields.FIXED_OPTIONS)
    assert row("options that are refused unless neutral") == refused
    assert row("options without effect") == inert
    assert row("options that are served") == set(Options.__struct_fields__) - refused - inert


def test_all_refused_paths_are_listed() -> None:
    assert all(f"`{path}`" in PAGE for _, path in NOT_SERVED)
