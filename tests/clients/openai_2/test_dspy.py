"""DSPy, which speaks through LiteLLM: typed predictions and tools."""

from __future__ import annotations

from typing import Literal

import dspy
import litellm
import pytest
from people import EXTRACT, GREETING, MODEL, NAME, RESULT, weather

# Without this DSPy asks for any JSON object instead of one of the signature's schema.
litellm.register_model(
    {f"openai/{MODEL}": {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}}
)


@pytest.fixture
def model(v1: str) -> dspy.LM:
    return dspy.LM(
        f"openai/{MODEL}", api_base=v1, api_key="none", temperature=0.0, max_tokens=200, cache=False
    )


class Extract(dspy.Signature):
    """Extract the data as JSON."""

    sentence: str = dspy.InputField()
    name: str = dspy.OutputField()
    certain: Literal["yes"] = dspy.OutputField()


def test_chat(model: dspy.LM) -> None:
    (text,) = model(NAME)
    assert (text if isinstance(text, str) else text["text"]) == GREETING


def test_typed_prediction(model: dspy.LM) -> None:
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Extract)(sentence=EXTRACT)
    assert found.certain == "yes"
    assert isinstance(found.name, str)


def test_tool(model: dspy.LM) -> None:
    tool = dspy.Tool(weather)
    assert tool(city="Rome") == RESULT
