"""Renders messages into the text of a prompt with the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError

from ....runtime.errors import ConfigError, RequestError
from .control_texts import ControlTexts
from .jinja_environment import copy_plain, make_jinja_environment
from .prompt_rules import PromptRules, RuledMessages
from .template_support import TemplateSupport, find_support
from .tokenizer import SPECIAL_ROLES, Tokenizer, read_json, token_content

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_FIELDS = ("content", *_REASONING_FIELDS)
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "


class Copies:
    """The copies of messages for one template. Several renders of the same messages may share them, because
    no template can change them, and copying takes longer than rendering."""

    def __init__(self) -> None:
        # The messages are kept too: an id is unique only while its object lives.
        self._found: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def of(self, message: dict[str, Any], control: ControlTexts) -> dict[str, Any]:
        if id(message) not in self._found:
            self._found[id(message)] = message, _copy_for_template(message, control)
        return self._found[id(message)][1]


class UnrenderableError(RequestError):
    """The template refuses the messages. `reason` is the template's own text."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(
            f"The model's chat template can't render these messages: {reason}{place}",
            param="messages",
            code="invalid_value",
        )
        self.reason = reason


class ChatTemplate:
    """A model's templates by name. `default` is used, or `tool_use` for requests with tools.

    `apply_rules` applies the `rules`; `render` does not. `response_template` is transformers' declaration of
    the marks in replies, as tokenizer_config.json has it.
    """

    def __init__(
        self,
        sources: dict[str, str],
        variables: dict[str, str],
        special_texts: frozenset[str],
        rules: PromptRules | None = None,
        response_template: object = None,
    ) -> None:
        self.response_template = response_template
        if "default" not in sources:
            raise ConfigError(f'The chat templates {sorted(sources)} have none named "default".')
        self._rules = rules or PromptRules()
        self._variables = variables
        self.special_texts = special_texts
        self._control = ControlTexts(special_texts)
        self._sources = sources
        self._templates = {
            name: parse_template(source, f'The chat template "{name}"') for name, source in sources.items()
        }
        self._support: dict[bool, TemplateSupport] = {}

    @classmethod
    def load(
        cls,
        directory: Path,
        tokenizer: Tokenizer,
        rules: PromptRules | None = None,
        replacement: str | None = None,
    ) -> ChatTemplate | None:
        """Reads the model's chat templates; None if it has none. A `replacement` stands for all of them."""
        sources = {} if replacement is None else {"default": replacement}
        sources = sources or _read_template_files(directory) or _read_configured_templates(tokenizer.config)
        if not sources:
            return None
        special = frozenset(map(tokenizer.token_text, tokenizer.special_tokens))
        variables, declared = _find_special_token_variables(tokenizer.config), tokenizer.config
        return cls(sources, variables, special, rules, declared.get("response_template"))

    def source(self, tools: list[dict[str, Any]] | None = None) -> str:
        """The source of the template that renders requests with these tools."""
        return self._sources[self._choose_name(tools)]

    def apply_rules(self, messages: list[dict[str, Any]]) -> RuledMessages:
        """The messages after the prompt rules."""
        if not self._rules:
            return RuledMessages(messages, ())
        return self._rules.apply(messages, self.support(with_tools=False).later_system)

    def support(self, *, with_tools: bool) -> TemplateSupport:
        """What the template prints. `with_tools`: in conversations with tools, which may use another one."""
        if with_tools not in self._support:
            found = find_support(lambda chat, tools: self.render(chat, tools=tools), with_tools=with_tools)
            self._support[with_tools] = found
        return self._support[with_tools]

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: dict[str, Any] | None = None,
        copies: Copies | None = None,
    ) -> str:
        """Renders as transformers' `apply_chat_template` does. A tool call's `arguments` are JSON text in
        OpenAI's API; the template gets them as an object, as templates expect.

        A client's text never forms a special token, because a `CONTROL_MARK` is put into it. Renders
        with the same `copies` copy each message once.

        Raises UnrenderableError if the template refuses the messages.
        """
        try:
            control = self._control
            copies = copies or Copies()
            chat = [copies.of(message, control) for message in messages]
            if continue_final_message:
                chat[-1:] = [_copy_for_template(message, control) for message in messages[-1:]]
                _mark_end(chat, add_generation_prompt)
            text = self._templates[self._choose_name(tools)].render(
                {
                    **self._variables,
                    "documents": None,
                    **_copy_plain_dict(kwargs or {}, control.guard),
                    "messages": chat,
                    "tools": copy_plain(tools, control.guard),
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except RequestError:
            raise
        except RecursionError:
            raise RequestError(
                "The messages are nested too deep for the model's chat template: shorten the arguments of "
                "their tool calls.",
                param="messages",
                code="invalid_value",
            ) from None
        except Exception as error:  # a template is a program, which can fail in any way
            raise UnrenderableError(str(error)) from error
        return _cut_at_mark(text) if continue_final_message else text

    def _choose_name(self, tools: list[dict[str, Any]] | None) -> str:
        return "tool_use" if tools is not None and "tool_use" in self._sources else "default"


def parse_template(source: str, label: str) -> Template:
    """Compiles the source of a template. Raises ConfigError, which begins with the label."""
    try:
        return make_jinja_environment().from_string(source)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else ""
        raise ConfigError(f"{label} can't be read: {error}{place}") from error


def _read_template_files(directory: Path) -> dict[str, str]:
    paths = {"default": directory / "chat_template.jinja"}
    paths.update(
        {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    )
    sources = {name: path.read_text("utf-8") for name, path in paths.items() if path.is_file()}
    return sources or _name_templates(read_json(directory / "chat_template.json").get("chat_template"))


def _read_configured_templates(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    return _name_templates(tokenizer_config.get("chat_template"))


def _name_templates(value: object) -> dict[str, str]:
    match value:
        case None:
            return {}
        case str():
            return {"default": value}
        case list():
            return {entry["name"]: entry["template"] for entry in value}
        case _:
            raise ConfigError(
                f"chat_template should be a string or a list of templates, found {type(value).__name__}."
            )


def _find_special_token_variables(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    names = [f"{role}_token" for role in SPECIAL_ROLES]
    contents = {name: token_content(tokenizer_config.get(name)) for name in names}
    return {name: content for name, content in contents.items() if content is not None}


def _copy_plain_dict(value: dict[str, Any], write: Callable[[str], str] = str) -> dict[str, Any]:
    copy = copy_plain(value, write)
    assert isinstance(copy, dict)
    return copy


def _copy_for_template(message: dict[str, Any], control: ControlTexts) -> dict[str, Any]:
    """A copy that has the reasoning under each of its names, and objects in tool calls. All of it is guarded
    but the role, which templates may put between the parts of a special token."""
    copy = _copy_plain_dict(message)
    reasoning = next((copy[name] for name in _REASONING_FIELDS if copy.get(name) is not None), None)
    if reasoning is not None:
        copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
    for call in copy.get("tool_calls") or ():
        function = call.get("function", call)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _parse_arguments(function["arguments"])
    for name, value in copy.items():
        if name == "tool_calls":
            copy[name] = [_guard_fields(call, control) for call in value or ()]
        elif name != "role":
            copy[name] = copy_plain(value, control.guard if name in _TEXT_FIELDS else control.guard_word)
    return copy


def _guard_fields(fields: dict[str, Any], control: ControlTexts) -> dict[str, Any]:
    """A call of a tool. The names of its fields stay as they are, because templates look them up."""
    return {
        name: _guard_fields(value, control)
        if name == "function" and isinstance(value, dict)
        else copy_plain(value, control.guard_word)
        for name, value in fields.items()
    }


def _parse_arguments(text: str) -> object:
    """Arguments as an object for the template. Text that is not a JSON object stays text."""
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _mark_end(chat: list[dict[str, Any]], add_generation_prompt: bool) -> None:
    """Puts a mark after the final message's text, to cut the rendered prompt there."""
    if add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other: set one to false.",
            param="continue_final_message",
            code="invalid_value",
        )
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_HERE
        return
    texts = [part for part in content or () if isinstance(part, dict) and "text" in part]
    if not texts:
        raise RequestError(
            "continue_final_message needs a final message with text to continue.",
            param="messages",
            code="invalid_value",
        )
    texts[-1]["text"] += _CONTINUE_HERE


def _cut_at_mark(text: str) -> str:
    position = text.rfind(_CONTINUE_HERE.strip())
    if position < 0:
        raise RequestError(
            "continue_final_message: the model's chat template leaves out the final message's text.",
            param="messages",
            code="invalid_value",
        )
    spacing_kept = text.startswith(_CONTINUE_HERE, position)
    return text[:position] if spacing_kept else text[:position].rstrip()
