"""DSPy, which speaks through LiteLLM: chats and tools."""

from __future__ import annotations

import dspy
import pytest
from people import GREETING, MODEL, NAME, RESULT, weather


@pytest.fixture
def model(v1: str) -> dspy.LM:
    return dspy.LM(
        f"openai/{MODEL}", api_base=v1, api_key="none", temperature=0.0, max_tokens=200, cache=False
    )


def test_chat(model: dspy.LM) -> None:
    (text,) = model(NAME)
    assert (text if isinstance(text, str) else text["text"]) == GREETING


def test_tool(model: dspy.LM) -> None:
    tool = dspy.Tool(weather)
    assert tool(city="Rome") == RESULT
