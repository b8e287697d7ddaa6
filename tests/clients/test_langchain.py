"""LangChain's ChatOpenAI, over chat completions and over Responses, and a LangGraph graph with tools."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, Person, weather
from recording import Recorded

APIS = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


def chat(v1: str, responses: bool, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=v1, api_key="none", temperature=0, use_responses_api=responses, **more
    )


def test_the_page_prints_what_it_shows(url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "langchain.md").read_text()
    code, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "text"))
    command = [sys.executable, "-c", code.replace("http://127.0.0.1:8000", url)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout == shown, ran.stderr


@APIS
async def test_chat_and_stream(v1: str, responses: bool) -> None:
    model = chat(v1, responses)
    reply = model.invoke([HumanMessage(NAME)])
    assert reply.text == GREETING
    assert reply.usage_metadata["output_tokens"] > 0
    assert "".join([part.text async for part in model.astream(NAME)]) == GREETING


@APIS
def test_structured_output(v1: str, responses: bool) -> None:
    for method in ("json_schema", "function_calling"):
        model = chat(v1, responses).with_structured_output(Person, method=method)
        assert model.invoke(EXTRACT) == Person(name="Ada", age=36)


@APIS
def test_graph_calls_a_tool_and_answers(recorded: Recorded, responses: bool) -> None:
    lookup = tool(weather)
    model = chat(recorded.v1, responses, max_tokens=100)
    caller = model.bind_tools([lookup], tool_choice="weather")
    graph = StateGraph(MessagesState)
    graph.add_node("call", lambda state: {"messages": [caller.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([lookup]))
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "call")
    graph.add_edge("call", "tools")
    graph.add_edge("tools", "answer")
    graph.add_edge("answer", END)
    _, asked, result, answer = graph.compile().invoke({"messages": [HumanMessage(ASK_WEATHER)]})["messages"]
    assert isinstance(asked, AIMessage) and isinstance(result, ToolMessage)
    assert [call["args"] for call in asked.tool_calls] == [{"city": "Rome"}]
    assert result.content == RESULT
    assert len(recorded.bodies) == 2 and recorded.tool_results == [RESULT]
    assert isinstance(answer, AIMessage) and answer.text
