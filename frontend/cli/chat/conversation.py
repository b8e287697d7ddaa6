"""The conversation of a chat: its messages, and the settings of the next request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

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
}
"""the type of each field that /set takes; the server checks its range"""
_EXPECTED: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    SETTINGS["stop"]: "a text or a JSON list of texts",
}
ROLES = ("user", "assistant")


class CommandError(Exception):
    """A slash command that can't be carried out. The message says why and what to write."""


class CommandInterruptedError(CommandError):
    """The user has interrupted a slash command, which changed nothing."""


class Conversation(msgspec.Struct, kw_only=True):
    """The content of a file that `/save` writes. `messages` has the user's and the assistant's turns."""

    model: str
    system: str | None = None
    messages: list[dict[str, str]] = []
    settings: dict[str, Any] = {}
    schema: dict[str, Any] | None = None
    """a JSON schema that replies must match"""

    def prompt(self, text: str) -> list[dict[str, str]]:
        """The messages of a request in which the user says `text`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, {"role": "user", "content": text}]

    def fields(self) -> dict[str, Any]:
        """The fields of the next request beside its messages."""
        if self.schema is None:
            return dict(self.settings)
        constraint = {"name": "reply", "strict": True, "schema": self.schema}
        wanted = {"type": "json_schema", "json_schema": constraint}
        return {**self.settings, "response_format": wanted}

    def add(self, text: str, reply: str) -> None:
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]

    def set(self, name: str, text: str) -> None:
        """Sets a field of the next requests; an empty text removes it. Raises CommandError."""
        if name not in SETTINGS:
            raise CommandError(
                f"there is no setting {name}.{did_you_mean(name, SETTINGS)} There are {', '.join(SETTINGS)}."
            )
        if not text:
            self.settings.pop(name, None)
            return
        kind = SETTINGS[name]
        try:
            value = text if kind is str else msgspec.json.decode(text)
            self.settings[name] = msgspec.convert(value, kind)
        except (msgspec.DecodeError, msgspec.ValidationError):
            if kind != SETTINGS["stop"] or text.startswith("["):
                expected = _EXPECTED[kind]
                raise CommandError(f"/set {name} {text}: expected {expected}.") from None
            self.settings[name] = text

    def save(self, path: Path) -> None:
        """Raises CommandError."""
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        except OSError as error:
            raise CommandError(f"/save {path}: the file can't be written ({error.strerror}).") from None


def read_schema(text: str) -> dict[str, Any] | None:
    """A JSON schema from JSON or a file that has it; None for `off`. Raises CommandError."""
    if text == "off":
        return None
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).expanduser().read_text()
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
    except OSError as error:
        raise CommandError(f"/load {path}: the file can't be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:
        raise CommandError(f"/load {path}: this is no conversation that /save wrote: {error}.") from None
    for number, message in enumerate(loaded.messages, start=1):
        if message.keys() != {"role", "content"} or message["role"] not in ROLES:
            raise CommandError(
                f"/load {path}: message {number} must have a role, which is user or assistant, and content."
            )
    for name, value in loaded.settings.items():
        try:
            msgspec.convert(value, SETTINGS[name])
        except KeyError:
            raise CommandError(
                f"/load {path}: there is no setting {name}.{did_you_mean(name, SETTINGS)}"
            ) from None
        except msgspec.ValidationError:
            raise CommandError(f"/load {path}: the setting {name} has a wrong type.") from None
    return loaded
