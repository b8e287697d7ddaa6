"""Conversations whose misses are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from served import write_served_checkpoint

SYSTEM = "You are a careful assistant. Answer each question in one short sentence, and never guess. "
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name} looks up the {name} of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "population", "height")
]
_FORGETS_RESULTS = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'tool' and not loop.last %}(a result)"
    "{% else %}{{ message.content or '' }}{% endif %}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def facts(name: str) -> str:
    """Sentences that no other name has, of some 200 tokens."""
    return " ".join(f"{name} {number} is {name} {number * number} of {name}." for number in range(12))


def said(role: str, content: str) -> Any:
    return {"role": role, "content": content}


def write_forgetful_checkpoint(directory: Path) -> Path:
    """A model whose chat template shortens the results of tools in all turns but the last."""
    model = write_served_checkpoint(directory)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": _FORGETS_RESULTS}))
    return model
