"""DSPy, which speaks through LiteLLM: chats and typed predictions."""

from __future__ import annotations

from typing import Literal

import dspy
from people import GREETING, MODEL, NAME
from recording import Recorded


class Extract(dspy.Signature):
    """Extract the data."""

    sentence: str = dspy.InputField()
    name: Literal["Ada"] = dspy.OutputField()
    age: int = dspy.OutputField(ge=36, le=36)


def model(route: str, v1: str) -> dspy.LM:
    return dspy.LM(
        f"{route}/{MODEL}", api_base=v1, api_key="none", temperature=0.0, max_tokens=200, cache=False
    )


def test_chat(v1: str) -> None:
    (text,) = model("openai", v1)(NAME)
    assert (text if isinstance(text, str) else text["text"]) == GREETING


def test_typed_prediction(recorded: Recorded) -> None:
    """LiteLLM knows that the route `lm_studio` supports schemas, so DSPy sends one."""
    with dspy.context(lm=model("lm_studio", recorded.v1), adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Extract)(sentence="Ada is 36 years old.")
    (body,) = recorded.bodies
    assert body["response_format"]["type"] == "json_schema"
    assert (found.name, found.age) == ("Ada", 36)
