"""OpenAI's Agents SDK, over Responses and over chat completions."""

from __future__ import annotations

import agents
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, Person, weather
from recording import Recorded

MODELS = [OpenAIResponsesModel, OpenAIChatCompletionsModel]
agents.set_tracing_disabled(True)


@pytest.fixture
def client(v1: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=v1, api_key="none")


@pytest.mark.parametrize("kind", MODELS)
async def test_chat_and_typed_output(client: AsyncOpenAI, kind: type) -> None:
    model, settings = kind(MODEL, client), ModelSettings(temperature=0)
    agent = Agent("assistant", model=model, model_settings=settings)
    assert (await Runner.run(agent, NAME)).final_output == GREETING
    typed = Agent("extractor", model=model, model_settings=settings, output_type=Person)
    assert (await Runner.run(typed, EXTRACT)).final_output == Person(name="Ada", age=36)


@pytest.mark.parametrize("kind", MODELS)
async def test_tool_loop(recorded: Recorded, kind: type) -> None:
    """After the first call `tool_choice` returns to auto."""
    client = AsyncOpenAI(base_url=recorded.v1, api_key="none")
    agent = Agent(
        "assistant",
        model=kind(MODEL, client),
        model_settings=ModelSettings(temperature=0, tool_choice="required", max_tokens=200),
        tools=[function_tool(weather)],
    )
    result = await Runner.run(agent, ASK_WEATHER)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == [RESULT]
    assert len(recorded.bodies) > 1 and recorded.tool_results == [RESULT]
    assert result.final_output == result.raw_responses[-1].output[0].content[0].text


@pytest.mark.parametrize("kind", MODELS)
async def test_stream(client: AsyncOpenAI, kind: type) -> None:
    agent = Agent("assistant", model=kind(MODEL, client), model_settings=ModelSettings(temperature=0))
    streamed = Runner.run_streamed(agent, NAME)
    texts = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(texts) == streamed.final_output == GREETING
