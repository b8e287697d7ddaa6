"""Requests in the shape that Codex CLI sends."""

from __future__ import annotations

from typing import Any

HEADERS = {
    "originator": "codex_cli_rs",
    "user-agent": "codex_cli_rs/0.60.0 (Linux; x86_64)",
    "session_id": "5b1c7a52-3c1e-4a5d-9d0e-0d6f0a4f2b11",
    "accept": "text/event-stream",
}
PATCH_GRAMMAR = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
STRING = {"type": "string"}
APPLY_PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files. This is a FREEFORM tool, so do not wrap the "
    "patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}


def function(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": f"Calls {name}.",
        "strict": False,
        "parameters": parameters,
    }


PLAN = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"step": STRING, "status": STRING},
        "required": ["step", "status"],
        "additionalProperties": False,
    },
}
TOOLS = [
    function(
        "shell",
        ["command"],
        command={"type": "array", "items": STRING},
        workdir=STRING,
        timeout_ms={"type": "number"},
        with_escalated_permissions={"type": "boolean"},
        justification=STRING,
    ),
    {"type": "local_shell"},
    function("update_plan", ["plan"], explanation=STRING, plan=PLAN),
    APPLY_PATCH,
    function("view_image", ["path"], path=STRING),
]


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def first_turn(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "instructions": "You write code in the Codex CLI.",
        "input": [
            message("developer", "<permissions instructions>Read only.</permissions instructions>"),
            message("user", "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"),
            message("user", "List the files."),
        ],
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": HEADERS["session_id"],
        "text": {"verbosity": "medium"},
    }


def next_turn(
    request: dict[str, Any], items: list[dict[str, Any]], results: dict[str, str]
) -> dict[str, Any]:
    """`items` are the output items of the last response, `results` the results of its calls by id.

    Codex sends the fields of an item that it knows: reasoning goes back encrypted, and no item has its id.
    """
    kept: list[dict[str, Any]] = []
    for item in items:
        dropped = {"id", "content"} if item["type"] == "reasoning" else {"id"}
        kept.append({name: value for name, value in item.items() if name not in dropped})
        if item.get("call_id") in results:
            kind = f"{item['type']}_output"
            kept.append({"type": kind, "call_id": item["call_id"], "output": results[item["call_id"]]})
    return {**request, "input": [*request["input"], *kept]}
