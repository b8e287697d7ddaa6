"""smolagents: its model class, and an agent that answers by its tool `final_answer`."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, Person
from smolagents import ChatMessage, MessageRole, OpenAIServerModel, Tool, ToolCallingAgent


class Weather(Tool):
    name = "weather"
    description = "Looks the weather up."
    inputs: ClassVar = {"city": {"type": "string", "description": "The city", "enum": ["Rome"]}}
    output_type = "string"

    def forward(self, city: str) -> str:
        return RESULT


@pytest.fixture(scope="module")
def model(v1: str) -> OpenAIServerModel:
    return OpenAIServerModel(MODEL, api_base=v1, api_key="none", temperature=0, max_tokens=200)


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])]


def test_chat_and_stream(model: OpenAIServerModel) -> None:
    assert model.generate(user(NAME)).content == GREETING
    assert "".join(part.content or "" for part in model.generate_stream(user(NAME))) == GREETING


def test_structured_output(model: OpenAIServerModel) -> None:
    schema = {"name": "person", "schema": Person.model_json_schema()}
    reply = model.generate(user(EXTRACT), response_format={"type": "json_schema", "json_schema": schema})
    assert Person.model_validate_json(reply.content) == Person(name="Ada", age=36)


def test_tool_call(model: OpenAIServerModel) -> None:
    reply = model.generate(user(ASK_WEATHER), tools_to_call_from=[Weather()])
    (call,) = reply.tool_calls
    assert call.function.name == "weather"
    assert Weather().forward(**json.loads(call.function.arguments)) == RESULT


def test_agent_gives_a_final_answer(v1: str) -> None:
    model = OpenAIServerModel(MODEL, api_base=v1, api_key="none", temperature=0, max_tokens=60)
    agent = ToolCallingAgent(tools=[], model=model, max_steps=2, verbosity_level=0)
    result = agent.run("Say yes.", return_full_result=True)
    assert result.state == "success"
    assert result.output is not None
