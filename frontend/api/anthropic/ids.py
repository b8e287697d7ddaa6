"""The ids of tool calls. Anthropic's begin with `toolu_`, those that chat templates get with `call_`.

Mistral's templates accept nothing but nine letters and digits, so such an id has no prefix there.
"""

from __future__ import annotations

_WIRE, _TEMPLATE = "toolu_", "call_"
_BARE_LENGTH = 9


def wire_id(id: str) -> str:
    return _WIRE + id.removeprefix(_TEMPLATE)


def template_id(id: str) -> str:
    """The inverse of `wire_id`. An id of another API stays as it is."""
    if not id.startswith(_WIRE):
        return id
    bare = id.removeprefix(_WIRE)
    return bare if len(bare) == _BARE_LENGTH else _TEMPLATE + bare
