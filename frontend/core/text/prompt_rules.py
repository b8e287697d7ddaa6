"""Rules that remove lines that differ in each request from system prompts, so that prompts begin alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ....runtime.config import PromptRule

Message = dict[str, Any]
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,? )?"
DATE = (
    rf"{_WEEKDAY}(?:\d{{4}}[-/]\d{{1,2}}[-/]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}(?:st|nd|rd|th)? {_MONTH},? \d{{4}})"
)
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
CLOCK = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?: ?[AaPp](?:[Mm]|\.[Mm]\.))?{_ZONE}"
DATED_CLOCK = rf"(?:{DATE}(?:T|,? (?:at )?))?{CLOCK}"
_BULLET = r"[*#\- ]*"
_TODAY = r"(?:Today's date|The current date|Current date|Today is|Date)"
_NOW = r"(?:(?:The current|Current|Today's) (?:date and |date & )?time|Current datetime|Timestamp|Now|Time)"
_IS = r"(?: is)?[*:]* *"
_ID = r"(?i:(?:request|session|conversation|trace|message|run)[ _-]?id)"


class Rule(NamedTuple):
    """Drops each whole line of the system prompt that `line` matches, or moves it behind the conversation."""

    name: PromptRule
    line: re.Pattern[str]
    does: Literal["drop", "move"]


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("billing-header", re.compile(r"x-anthropic-billing-header:.*"), "drop"),
        Rule("request-id", re.compile(rf"{_BULLET}{_ID}{_IS}[`\"']?[A-Za-z0-9_-]{{6,}}[`\"']?\.?"), "drop"),
        Rule("date-line", re.compile(rf"{_BULLET}{_TODAY}{_IS}{DATE}\.?"), "move"),
        Rule("time-line", re.compile(rf"{_BULLET}(?:{_NOW}|{_TODAY}){_IS}{DATED_CLOCK}\.?"), "move"),
    )
}


class RuledMessages(NamedTuple):
    """The messages to render, and the names of the rules that changed them."""

    messages: list[Message]
    applied: tuple[str, ...]


class PromptRules:
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._rules = [RULES[name] for name in names]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def apply(self, messages: list[Message], keeps_system_messages: bool) -> RuledMessages:
        """Applies the rules to the system prompt, the first message.

        Moved lines become a system message at the end, or the end of the last user's message if the template
        does not keep system messages where they are. In a conversation without a user's message nothing is
        moved, and nothing after a message that the reply continues.
        """
        if not messages or messages[0]["role"] != "system":
            return RuledMessages(messages, ())
        last_user = _find_last_user(messages)
        can_move = last_user is not None and messages[-1]["role"] != "assistant"
        kept, moved, applied = self._sort_lines(messages[0]["content"], can_move)
        if not applied:
            return RuledMessages(messages, ())
        ruled = [{**messages[0], "content": kept}, *messages[1:]]
        if moved and keeps_system_messages:
            ruled.append({"role": "system", "content": "\n".join(moved)})
        elif moved and last_user is not None:
            message = ruled[last_user]
            ruled[last_user] = {**message, "content": "\n\n".join((message["content"], "\n".join(moved)))}
        return RuledMessages(ruled, tuple(applied))

    def _sort_lines(self, text: str, can_move: bool) -> tuple[str, list[str], list[str]]:
        """The text without the lines that rules match, the lines to move, and the names of the matching
        rules."""
        kept: list[str] = []
        moved: list[str] = []
        applied: dict[str, None] = {}
        for line in text.split("\n"):
            rule = next((rule for rule in self._rules if rule.line.fullmatch(line.strip())), None)
            if rule is None or (rule.does == "move" and not can_move):
                kept.append(line)
                continue
            applied[rule.name] = None
            if rule.does == "move":
                moved.append(line.strip())
        return "\n".join(kept), moved, list(applied)


def _find_last_user(messages: Sequence[Message]) -> int | None:
    return next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "user"), None)
