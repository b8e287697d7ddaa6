"""Writes tools, calls and results as text for chat templates that would leave them out."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakSet

from ..text.chat_template import ChatTemplate
from .call_format import ToolFormat
from .tool_formats import detect_format

Message = dict[str, Any]
Tools = list[dict[str, Any]]

_PROMPT = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>
"""
_BETWEEN = "\n\n"
_warned: WeakSet[ChatTemplate] = WeakSet()
log = logging.getLogger(__name__)


def write_missing(
    template: ChatTemplate, messages: list[Message], tools: Tools | None
) -> tuple[list[Message], Tools | None]:
    """Adds text for everything that the template would leave out. Returns the messages and the remaining
    tools.

    Tools are described in the system message. A turn's calls follow its text as the model writes them, so
    that the next turn finds them in the cache. Results become messages of the user.
    """
    has_calls = any("tool_calls" in message for message in messages)
    if not (tools or has_calls or any(message["role"] == "tool" for message in messages)):
        return messages, tools
    support = template.support(with_tools=tools is not None)
    if support.results:
        return messages, tools
    _warn(template)
    if has_calls and not support.calls:
        format = detect_format(template)
        messages = [_write_calls(message, format) for message in messages]
    messages = list(_make_results_the_users(messages))
    if tools and not support.tools:
        return _add_tool_prompt(template, messages, tools), None
    return messages, tools


def _warn(template: ChatTemplate) -> None:
    if template not in _warned:
        _warned.add(template)
        log.warning(
            "the model's chat template leaves out tools, their calls or their results: they are written as "
            "text, which a model that was not trained for tools may not follow"
        )


def _add_tool_prompt(template: ChatTemplate, messages: Sequence[Message], tools: Tools) -> list[Message]:
    """Describes the tools in the system message, or in a user's message if the template drops system ones."""
    prompt = _PROMPT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if not template.support(with_tools=False).system:
        return [{"role": "user", "content": prompt}, *messages]
    if messages and messages[0]["role"] == "system":
        content = _BETWEEN.join(filter(None, (messages[0]["content"], prompt)))
        return [{**messages[0], "content": content}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def _write_calls(message: Message, format: ToolFormat) -> Message:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = format.write([(function["name"], function["arguments"]) for function in functions])
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, (message["content"], calls)))}


def _make_results_the_users(messages: Sequence[Message]) -> Iterable[Message]:
    """Joins the results of one turn into one message of the user."""
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            texts = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in group)
            yield {"role": "user", "content": "\n".join(texts)}
        else:
            yield from group
