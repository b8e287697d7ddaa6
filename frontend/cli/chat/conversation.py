"""The conversation of a chat: its messages, and the settings of the next request."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from ....runtime.option_values import expand_home
from ...core.text.close_names import did_you_mean

SETTINGS: dict[str, Any] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "stop": str | list[str],
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "reasoning_effort": str,
    "cache_salt": str,
    "cache_prompt": bool,
    "speculate": int,
}
"""The type of each field that /set takes. The server checks its range."""
_EXPECTED: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    SETTINGS["stop"]: "a text or a JSON list of texts",
}
_Settings = msgspec.defstruct(
    "_Settings",
    [(name, kind | msgspec.UnsetType, msgspec.UNSET) for name, kind in SETTINGS.items()],
    forbid_unknown_fields=True,
)


class CommandError(Exception):
    """A slash command that can't be carried out. The message says why and what to write."""


class CommandInterruptedError(CommandError):
    """The user has interrupted a slash command, which changed nothing."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class Conversation(msgspec.Struct, kw_only=True):
    """The content of a file that `/save` writes."""

    model: str
    system: str | None = None
    messages: list[Message] = []
    settings: dict[str, Any] = {}
    schema: dict[str, Any] | None = None
    """a JSON schema that replies must match"""

    def prompt(self, text: str) -> list[object]:
        """The messages of a request in which the user says `text`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, Message("user", text)]

    def fields(self) -> dict[str, Any]:
        """The fields of the next request, without its messages."""
        return {**self.settings, **schema_fields(self.schema)}

    def add(self, text: str, reply: str) -> None:
        self.messages += [Message("user", text), Message("assistant", reply)]

    def with_setting(self, name: str, text: str) -> Conversation:
        """A copy in which a field of the next requests is set. An empty text removes it. Raises
        CommandError."""
        if name not in SETTINGS:
            raise CommandError(
                f"there is no setting {name}.{did_you_mean(name, SETTINGS)} There are {', '.join(SETTINGS)}."
            )
        settings = dict(self.settings)
        settings.pop(name, None)
        if text:
            settings[name] = _read_setting(name, text)
        return msgspec.structs.replace(self, settings=settings)

    def save(self, path: Path) -> None:
        """Writes the conversation to a file. Raises CommandError if that fails."""
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        except OSError as error:
            raise CommandError(f"/save {path}: the file can't be written ({error.strerror}).") from None


def _read_setting(name: str, text: str) -> Any:
    kind = SETTINGS[name]
    try:
        return msgspec.convert(text if kind is str else msgspec.json.decode(text), kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        if kind == SETTINGS["stop"] and not text.startswith("["):
            return text
        raise CommandError(f"/set {name} {text}: expected {_EXPECTED[kind]}.") from None


def schema_fields(schema: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a request whose reply must match the schema; None: any text."""
    if schema is None:
        return {}
    constraint = {"name": "reply", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": constraint}}


def read_schema(text: str) -> dict[str, Any] | None:
    """Reads a JSON schema: JSON, a file's path, or `off` (None). Raises CommandError for other text."""
    if text == "off":
        return None
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = expand_home(text).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise CommandError(f"/schema {text}: the file can't be read ({reason}).") from None
    try:
        return msgspec.json.decode(source, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CommandError(f"/schema: expected a JSON schema, which is an object: {error}.") from None


def load_conversation(path: Path) -> Conversation:
    """Reads what `save` wrote. Raises CommandError, also for roles and settings that no chat has."""
    try:
        loaded = msgspec.json.decode(path.read_bytes(), type=Conversation)
        msgspec.convert(loaded.settings, _Settings)
    except OSError as error:
        raise CommandError(f"/load {path}: the file can't be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:  # invalid JSON or wrong types
        raise CommandError(f"/load {path}: this is no conversation that /save wrote: {error}.") from None
    return loaded
