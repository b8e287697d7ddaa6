"""Renders conversations: messages become plain dicts with text contents, as chat templates expect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ...runtime.errors import RequestError
from .cache_misses.outline import Outline, outline_of
from .message_forms import Form, Render, first_accepted, place_of_refusal
from .messages import PART_TYPES, ROLES, ChatMessage, ContentPart, Conversation, MessageToolCall, Tool
from .text.chat_template import ChatTemplate, Copies, UnrenderableError
from .tools.generic_tools import write_missing
from .validation import check_count, invalid_field, missing_field

MAX_MESSAGES = 16_384
MAX_TOOLS = 1024
JSON_TYPES = ("null", "boolean", "number", "integer", "string", "object", "array")
MAX_SCHEMA_DEPTH = 200
MAX_ARGUMENTS = 1 << 20  # characters of one tool call's arguments
_NOTHING_SAID = ChatMessage(role="user", content="")
_WITHOUT_PROPERTIES = {"type", "title", "description", "$schema", "additionalProperties", "required"}


class Rendered(NamedTuple):
    """A prompt's text, the parts from which it was rendered, and the form in which the template got them."""

    text: str
    outline: Outline
    form: Form


def render(
    template: ChatTemplate | None, conversation: Conversation, tools: list[dict[str, Any]] | None
) -> Rendered:
    """The prompt's text with its outline. Raises `RequestError` for messages that can't be rendered."""
    if template is None:
        raise RequestError(
            "This model has no chat template. Send a text to /v1/completions, or start the server with "
            "--chat-template FILE.",
            param="messages",
            code="no_chat_template",
        )
    ruled = template.apply_rules(template_messages(conversation.messages))
    messages, printed = write_missing(template, ruled.messages, tools)
    loses = not template.support(with_tools=printed is not None).several_systems
    try:
        accepted = first_accepted(
            _render_with(template, conversation, printed), messages, loses_system_messages=loses
        )
    except UnrenderableError as error:
        place = place_of_refusal(
            _render_with(template, _beginning(conversation), printed), messages, error.reason
        )
        raise UnrenderableError(error.reason, place) from None
    return Rendered(accepted.text, outline_of(accepted.messages, tools, ruled.applied), accepted.form)


def render_beginning(
    template: ChatTemplate | None, beginning: Conversation, tools: list[dict[str, Any]] | None, form: Form
) -> str | None:
    """The beginning of a longer conversation, rendered in the `form` of the whole.

    A template may need a message of the user: if it refuses the beginning, an empty one follows. None if the
    template refuses that too.
    """
    assert template is not None, "the whole conversation was rendered"
    for after in ((), (_NOTHING_SAID,)):
        with contextlib.suppress(RequestError):
            ruled = template.apply_rules(template_messages([*beginning.messages, *after]))
            messages, printed = write_missing(template, ruled.messages, tools)
            return _render_with(template, _beginning(beginning), printed)(form(messages))
    return None


def _beginning(conversation: Conversation) -> Conversation:
    return replace(conversation, begins_reply=False, continues_last=False)


def _render_with(
    template: ChatTemplate, conversation: Conversation, tools: list[dict[str, Any]] | None
) -> Render:
    """Renders messages with the variables of the conversation. All renders share the copies of messages."""
    return partial(
        template.render,
        tools=tools,
        add_generation_prompt=conversation.begins_reply,
        continue_final_message=conversation.continues_last,
        kwargs=dict(conversation.variables),
        copies=Copies(),
    )


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, object]]:
    """Plain dicts for the template. Raises `RequestError` naming the message and part that can't be
    served."""
    if not messages:
        raise invalid_field("messages", "must not be empty")
    check_count("messages", messages, MAX_MESSAGES, "messages")
    messages = with_tool_calls(messages)
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: ChatMessage, where: str) -> dict[str, object]:
    if message.role not in ROLES:
        raise invalid_field(f"{where}.role", f"is {message.role!r}, but must be one of {', '.join(ROLES)}")
    if message.content is None and not (message.role == "assistant"):
        raise invalid_field(
            f"{where}.content", "is missing: only an assistant's message may have none", "missing_field"
        )
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid_field(
            f"{where}.tool_call_id",
            "is missing: a tool's message must name the call that it answers",
            "missing_field",
        )
    role = "system" if message.role == "developer" else message.role
    result: dict[str, object] = {"role": role, "content": _text(message.content, where)}
    reasoning = message.reasoning_content or message.reasoning
    optional = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": reasoning}
    result.update({name: value for name, value in optional.items() if value is not None})
    if message.tool_calls:
        result["tool_calls"] = [
            _template_call(call, f"{where}.tool_calls[{index}]")
            for index, call in enumerate(message.tool_calls)
        ]
    return result


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part_text(part: ContentPart, where: str) -> str:
    if part.type not in PART_TYPES:
        raise invalid_field(
            where,
            f"has the type {part.type!r}, but this model takes only parts of type 'text'",
            "unsupported_content",
        )
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise RequestError(
            f"The required field {where}.{part.type} is missing.", param=where, code="missing_field"
        )
    return text


def _template_call(call: MessageToolCall, where: str) -> dict[str, object]:
    arguments = call.function.arguments or "{}"
    if isinstance(arguments, str):
        check_count(f"{where}.function.arguments", arguments, MAX_ARGUMENTS, "characters")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or "", "type": "function", "function": function}


def tool_definitions(
    tools: Sequence[Tool] | None,
    name: str = "function.name",
    parameters: str = "function.parameters",
    places: Sequence[str] = (),
) -> list[dict[str, Any]] | None:
    """The tools as the chat template prints them; None without tools.

    A tool without parameters gets an empty list of them, because templates iterate over it. Errors call the
    fields of a tool `name` and `parameters`. `places` are the paths of the tools in the request, by default
    `tools[0]` and so on.
    """
    if not tools:
        return None
    places = places or [f"tools[{index}]" for index in range(len(tools))]
    check_count("tools", tools, MAX_TOOLS, "tools")
    for index, tool in enumerate(tools):
        if tool.type != "function":
            raise invalid_field(
                f"{places[index]}.type", f"is {tool.type!r}, but must be 'function'", "unsupported_parameter"
            )
        if tool.function is None or not tool.function.name:
            raise missing_field(f"{places[index]}.{name}")
    _check_names([tool.function.name for tool in tools if tool.function is not None], name, places)
    for index, tool in enumerate(tools):
        schema = tool.function.parameters if tool.function is not None else None
        _check_parameters(f"{places[index]}.{parameters}", schema)
    return [_definition(tool) for tool in tools]


def _definition(tool: Tool) -> dict[str, Any]:
    definition: dict[str, Any] = msgspec.to_builtins(tool)
    function = definition["function"]
    parameters = function.get("parameters") or {}
    if not parameters.keys() - _WITHOUT_PROPERTIES:
        function["parameters"] = {"type": "object", "properties": {}, **parameters}
    return definition


def _check_names(names: list[str], field: str, places: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            param = f"{places[index]}.{field}"
            problem = f"is {name!r}, which is the name of {places[first[name]]} too. Give each its own"
            raise invalid_field(param, problem)


def _check_parameters(param: str, schema: dict[str, Any] | None) -> None:
    """Refuses a schema so deep that templates, validators or encoders would recurse too far."""
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [part for value in level for part in _parts(value)]
    if level:
        raise invalid_field(param, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    kind = (schema or {}).get("type", "object")
    names = kind if isinstance(kind, list) else [kind]
    if "object" not in names or any(name not in JSON_TYPES for name in names):
        raise invalid_field(
            f"{param}.type", f'is {json.dumps(kind)}, but arguments are an object: make it "object"'
        )


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def with_tool_calls(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The messages with each `function_call` as a tool call, and each function's result as a tool's message.

    A result answers the last call of its function. Ids depend only on the position, so that the next turn
    renders the same text. Raises `RequestError` for a message that has both kinds of calls.
    """
    if not any(message.role == "function" or message.function_call for message in messages):
        return messages
    ids: dict[str, str] = {}
    found = []
    for index, message in enumerate(messages):
        where, new_id = f"messages[{index}]", f"call{index:05}"  # Mistral's templates want nine characters
        if message.function_call is not None:
            ids[message.function_call.name] = new_id
            message = _convert_function_call(message, new_id, where)
        elif message.role == "function":
            if not message.name:
                raise invalid_field(
                    f"{where}.name",
                    "is missing: a function's message must name the function that it answers",
                    "missing_field",
                )
            call = ids.get(message.name, new_id)
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call)
        found.append(message)
    return found


def _convert_function_call(message: ChatMessage, new_id: str, where: str) -> ChatMessage:
    assert message.function_call is not None
    if message.role != "assistant" or message.tool_calls:
        why = "the message has tool_calls too" if message.tool_calls else f"the role is {message.role!r}"
        raise invalid_field(
            f"{where}.function_call",
            f"can't be used, as {why}: give an assistant's calls as tool_calls alone",
        )
    call = MessageToolCall(id=new_id, type="function", function=message.function_call)
    return msgspec.structs.replace(message, function_call=None, tool_calls=[call])
