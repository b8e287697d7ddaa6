"""New ids of responses, conversations and items."""

from __future__ import annotations

import secrets

PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
}


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def item_id(type: str | None) -> str:
    return new_id(PREFIXES[type or "message"])
