"""A field of several APIs has one type in all of them. (A msgspec struct can't inherit from two others.)"""

from __future__ import annotations

from arbora.frontend.api.anthropic.protocol import MessagesRequest
from arbora.frontend.api.openai.protocol import ChatRequest
from arbora.frontend.stored.responses.protocol import ResponsesRequest
from msgspec import Struct
from msgspec.structs import fields

OF_ITS_API = {"messages", "tools", "tool_choice", "max_tokens", "metadata", "stream_options"}
"""the fields that each API has in a form of its own"""


def types(body: type[Struct]) -> dict[str, object]:
    return {each.name: each.type for each in fields(body) if each.name not in OF_ITS_API}


def test_a_field_has_the_same_type_in_all_apis() -> None:
    chat, others = types(ChatRequest), (types(MessagesRequest), types(ResponsesRequest))
    for other in others:
        shared = chat.keys() & other.keys()
        assert {"min_p", "unenforced", "cache_salt", "priority", "regex"} <= shared
        assert {name: other[name] for name in shared} == {name: chat[name] for name in shared}
