"""The Vercel AI SDK, in Node: its OpenAI provider speaks Responses unless told otherwise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from people import GREETING, MODEL
from recording import Recorded

FOLDER = Path(__file__).parent / "vercel_ai"


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_chat_stream_structured_output_and_tools(recorded: Recorded, api: str) -> None:
    command = ["node", "client.mjs", recorded.v1, MODEL, api]
    run = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["chat"] == found["streamed"] == GREETING
    assert found["usage"] > 0
    assert found["structured"] == {"name": "Ada", "age": 36}
    assert found["results"] == [[{"city": "Rome"}, "sunny in Rome"]]
    assert found["steps"] == 2
    assert recorded.tool_results == ["sunny in Rome"]
