"""The slash commands of a chat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ....runtime.option_values import expand_home
from ...core.text.close_names import did_you_mean
from .conversation import CommandError, load_conversation, read_schema, schema_fields
from .talk import Talk


class SlashCommand(NamedTuple):
    arguments: str
    help: str
    run: Callable[[Talk, str], str]
    """Takes the text after the command and returns the answer. Raises CommandError."""


def _system(talk: Talk, text: str) -> str:
    if text:
        talk.conversation.system = None if text == "off" else text
    system = talk.conversation.system
    return f"system message: {system}" if system else "there is no system message"


def _schema(talk: Talk, text: str) -> str:
    if text:
        schema = read_schema(text)
        changed = replace(talk.conversation, schema=schema)
        talk.change("/schema", changed, schema_fields(schema), asks_any_server=True)
    schema = talk.conversation.schema
    return f"replies match {msgspec.json.encode(schema).decode()}" if schema else "replies have no schema"


def _model(talk: Talk, text: str) -> str:
    names = [each.name for each in talk.models]
    if text and text not in names:
        near = did_you_mean(text, names)
        raise CommandError(f"/model {text}: the server has no such model.{near} It has {', '.join(names)}.")
    talk.conversation.model = text or talk.conversation.model
    others = f" (of {', '.join(names)})" if len(names) > 1 else ""
    return f"model: {talk.conversation.model}{others}"


def _set(talk: Talk, text: str) -> str:
    name, _, value = text.partition(" ")
    if name:
        changed = talk.conversation.with_setting(name, value := value.strip())
        talk.change(f"/set {name} {value}", changed, {name: changed.settings[name]} if value else {})
    settings = talk.conversation.settings
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "nothing is set"


def _reset(talk: Talk, text: str) -> str:
    talk.reset()
    return "a new conversation begins"


def _save(talk: Talk, text: str) -> str:
    path = _path("/save", text)
    talk.conversation.save(path)
    return f"saved in {path}"


def _load(talk: Talk, text: str) -> str:
    path = _path("/load", text)
    loaded, model, note = load_conversation(path), talk.conversation.model, ""
    if loaded.model not in [each.name for each in talk.models]:
        note = f"; its model {loaded.model} is not served here, so {model} continues"
        loaded = replace(loaded, model=model)
    talk.change(f"/load {path}", loaded, loaded.fields())
    talk.last = None
    return f"{len(loaded.messages)} messages loaded{note}"


def _cache(talk: Talk, text: str) -> str:
    if talk.last is None:
        raise CommandError("/cache explains the last prompt, but there is none yet: say something first.")
    if talk.last.explanation is None:
        if talk.last.finish_reason == "interrupted":
            raise CommandError("/cache: the last reply was interrupted before its explanation arrived.")
        raise CommandError("/cache: this server does not explain cache misses; Arbora does.")
    return explanation_in_words(talk.last.explanation)


def _help(talk: Talk, text: str) -> str:
    width = max(len(f"{name} {command.arguments}") for name, command in COMMANDS.items())
    lines = [f"{f'{name} {command.arguments}':{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, f"{'//text':{width}}  say a text that begins with a slash"])


def _path(command: str, text: str) -> Path:
    try:
        (name,) = shlex.split(text)
    except ValueError:
        raise CommandError(f"{command} needs the name of one file, such as {command} chat.json.") from None
    return expand_home(name)


EXIT = "/exit"
COMMANDS = {
    "/system": SlashCommand("[TEXT|off]", "show or change the system message", _system),
    "/schema": SlashCommand("[FILE|JSON|off]", "make replies match a JSON schema", _schema),
    "/model": SlashCommand("[NAME]", "show or change the model", _model),
    "/set": SlashCommand("[NAME [VALUE]]", "set a sampling field, such as temperature 0.2", _set),
    "/cache": SlashCommand("", "say why tokens of the last prompt were not cached", _cache),
    "/reset": SlashCommand("", "begin a new conversation", _reset),
    "/save": SlashCommand("FILE", "write the conversation and its settings", _save),
    "/load": SlashCommand("FILE", "continue a saved conversation", _load),
    "/help": SlashCommand("", "list the commands", _help),
    EXIT: SlashCommand("", "end the chat; Ctrl-D does too", lambda talk, text: ""),
}


def is_command(text: str) -> bool:
    return text.startswith("/") and not text.startswith("//")


def run_command(talk: Talk, text: str) -> str:
    """Carries out one command and returns its answer. Raises CommandError."""
    name, _, rest = text.partition(" ")
    if name not in COMMANDS:
        raise CommandError(f"there is no {name}.{did_you_mean(name, COMMANDS)} /help lists the commands.")
    return COMMANDS[name].run(talk, rest.strip())


CAUSES = {
    "new": "no earlier prompt had them",
    "short": "less than a page at the end is always computed",
    "checkpoint": "no state of the recurrent layers was kept after them",
    "evicted": "their pages were evicted",
    "namespace": "they are cached in another namespace",
    "volatile": "they follow a line that changes with each request",
    "tools": "they follow tools that were changed",
    "system": "they follow a changed system prompt",
    "history": "they follow a changed earlier message",
    "template": "they follow a message that the chat template renders in another way now",
    "off": "this request did not use the cache",
}


def explanation_in_words(explanation: Mapping[str, Any]) -> str:
    """Lines with the tokens of each cause, and the texts where the prompt left the nearest earlier one."""
    matched, total = explanation["matched_tokens"], explanation["prompt_tokens"]
    could = explanation["could_match_tokens"]
    lines = [f"{matched} of {total} prompt tokens were cached, {could} could have been"]
    for cause, tokens in sorted(explanation["causes"].items(), key=lambda item: -item[1]):
        lines.append(f"  {tokens:>6}  {cause}: {CAUSES.get(cause, 'see the documentation')}")
    if difference := explanation.get("difference"):
        lines.append(f"first difference in {difference['part']} {difference['index'] or 0}, at token")
        lines[-1] += f" {difference['token']}: {difference.get('note') or ''}".rstrip(": ")
        lines += [f"  now      {difference['prompt']}", f"  earlier  {difference['earlier']}"]
    return "\n".join(lines)
