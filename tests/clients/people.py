"""The types, tools and questions of the tests. Schemas make the small model's answers certain."""

from typing import Literal

from pydantic import BaseModel, Field

MODEL = "arbora-builtin"
NAME = "My name is Ada."
GREETING = "Nice to meet you, Ada!"
EXTRACT = "Extract the data as JSON. Sentence: Ada is 36 years old."
ASK_WEATHER = "What is the weather in Rome?"
RESULT = "sunny"


class Person(BaseModel):
    """A person with a name and an age, of which only one fits."""

    name: Literal["Ada"]
    age: int = Field(ge=36, le=36)


class Judgement(BaseModel):
    """A verdict that can only be one value."""

    verdict: Literal["yes"]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Looks the weather up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def weather(city: Literal["Rome"]) -> str:
    """Look the weather up.

    Args:
        city: The name of the city.
    """
    assert city == "Rome"
    return RESULT
