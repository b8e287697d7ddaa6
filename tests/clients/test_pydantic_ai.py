"""Pydantic AI, over chat completions and over Responses."""

from __future__ import annotations

import pytest
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, Judgement, Person, weather
from pydantic_ai import Agent, NativeOutput, RunContext, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from recording import Recorded

KINDS = pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
COLD = {"temperature": 0.0, "max_tokens": 200}


def model_of(kind: type, v1: str) -> OpenAIChatModel | OpenAIResponsesModel:
    return kind(MODEL, provider=OpenAIProvider(base_url=v1, api_key="none"))


@KINDS
async def test_chat_and_stream(v1: str, kind: type) -> None:
    agent = Agent(model_of(kind, v1), model_settings=COLD)
    assert (await agent.run(NAME)).output == GREETING
    async with agent.run_stream(NAME) as result:
        assert "".join([part async for part in result.stream_text(delta=True)]) == GREETING


@KINDS
@pytest.mark.parametrize("output", [ToolOutput, NativeOutput])
async def test_typed_output(v1: str, kind: type, output: type) -> None:
    agent = Agent(model_of(kind, v1), output_type=output(Person), model_settings=COLD)
    assert (await agent.run(EXTRACT)).output == Person(name="Ada", age=36)


async def first(context: RunContext[None], tools: list[ToolDefinition]) -> list[ToolDefinition]:
    return tools if context.run_step == 1 else []


async def later(context: RunContext[None], tools: list[ToolDefinition]) -> list[ToolDefinition]:
    return tools if context.run_step > 1 else []


@KINDS
async def test_tool_loop(recorded: Recorded, kind: type) -> None:
    """The first step may only call the tool, the second only give the output."""
    agent = Agent(
        model_of(kind, recorded.v1),
        output_type=Judgement,
        model_settings=COLD,
        tools=[weather],
        capabilities=[PrepareTools(first), PrepareOutputTools(later)],
    )
    result = await agent.run(ASK_WEATHER)
    parts = [part for message in result.all_messages() for part in message.parts]
    assert next(part.content for part in parts if isinstance(part, ToolReturnPart)) == RESULT
    assert len(recorded.bodies) == 2 and recorded.tool_results == [RESULT]
    assert result.output == Judgement(verdict="yes")
