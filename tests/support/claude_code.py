"""Requests in the shape that Claude Code sends."""

from __future__ import annotations

from typing import Any

BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
}
EPHEMERAL = {"type": "ephemeral"}
USER = "user_0f3a_account__session_5b1c7a52-3c1e-4a5d-9d0e-0d6f0a4f2b11"


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    """A tool all of whose properties are required."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "input_schema": schema}


STRING = {"type": "string"}
LISTED_TASK = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
        "activeForm": {"type": "string", "minLength": 1},
    },
    "required": ["content", "status", "activeForm"],
    "additionalProperties": False,
}
TOOLS = [
    tool("Bash", "Runs a command.", command=STRING, timeout={"type": "number"}),
    tool("Read", "Reads a file.", file_path=STRING, offset={"type": "number"}),
    tool("Edit", "Edits a file.", file_path=STRING, old_string=STRING, new_string=STRING),
    tool("Grep", "Searches files.", pattern=STRING, output_mode={"type": "string", "enum": ["content"]}),
    tool("TodoWrite", "Keeps a list.", todos={"type": "array", "items": LISTED_TASK}),
    tool("mcp__clock__wait", "Waits.", seconds={"type": "integer", "minimum": 0, "maximum": 60}),
    tool("Task", "Starts a task.", prompt=STRING),
]
SYSTEM = [
    text("x-anthropic-billing-header: cc_version=2.1.0.5f1; cc_entrypoint=cli; cch=1f2e3;"),
    text("You are Claude Code, Anthropic's official CLI for Claude.", cache_control=EPHEMERAL),
    text("You help with software.\n# Environment\nPlatform: linux", cache_control=EPHEMERAL),
]


def first_turn(model: str, max_tokens: int) -> dict[str, Any]:
    reminder = text("<system-reminder>\nThe list of tasks is empty.\n</system-reminder>")
    return {
        "model": model,
        "messages": [
            {"role": "user", "content": [reminder, text("List the files.", cache_control=EPHEMERAL)]}
        ],
        "system": SYSTEM,
        "tools": TOOLS,
        "metadata": {"user_id": USER},
        "max_tokens": max_tokens,
        "thinking": {"type": "enabled", "budget_tokens": max_tokens - 1},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stream": True,
    }


def next_turn(request: dict[str, Any], reply: list[Any], results: dict[str, str]) -> dict[str, Any]:
    """`reply` are the blocks of the assistant's message, `results` the results of its calls by id."""
    blocks = [
        {"type": "tool_result", "tool_use_id": id, "content": [text(result)], "is_error": False}
        for id, result in results.items()
    ]
    blocks.append(text("Go on.", cache_control=EPHEMERAL))
    turns = [{"role": "assistant", "content": reply}, {"role": "user", "content": blocks}]
    return {**request, "messages": [*request["messages"], *turns]}
