"""LlamaIndex's OpenAILike."""

from __future__ import annotations

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, Person, weather
from recording import Recorded


@pytest.fixture(scope="module")
def model(v1: str) -> OpenAILike:
    return model_at(v1)


def model_at(v1: str) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=v1,
        api_key="none",
        temperature=0,
        context_window=2048,
        max_tokens=100,
        is_chat_model=True,
        is_function_calling_model=True,
    )


def test_chat_and_stream(model: OpenAILike) -> None:
    messages = [ChatMessage(role="user", content=NAME)]
    assert model.chat(messages).message.content == GREETING
    assert "".join(part.delta or "" for part in model.stream_chat(messages)) == GREETING


def test_structured_output(model: OpenAILike) -> None:
    reply = model.as_structured_llm(Person).complete(EXTRACT)
    assert reply.raw == Person(name="Ada", age=36)


def test_tool_call_and_its_result(recorded: Recorded) -> None:
    model = model_at(recorded.v1)
    tool = FunctionTool.from_defaults(weather)
    reply = model.chat_with_tools([tool], user_msg=ASK_WEATHER, tool_required=True)
    (call,) = model.get_tool_calls_from_response(reply)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Rome"})
    output = tool(**call.tool_kwargs)
    assert output.raw_output == RESULT
    result = ChatMessage(role="tool", content=str(output), additional_kwargs={"tool_call_id": call.tool_id})
    answer = model.chat([ChatMessage(role="user", content=ASK_WEATHER), reply.message, result])
    assert recorded.tool_results == [RESULT]
    assert answer.message.content
