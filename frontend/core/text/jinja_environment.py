"""The Jinja dialect of chat templates, as transformers defines it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .tokenizer import CONTROL_MARK

_ESCAPED_MARK = json.dumps(CONTROL_MARK)[1:-1]


class GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training. Here it is plain
    text."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class TemplateNamespace(Namespace):
    """A namespace that never sets Python's own attributes."""

    def __init__(*args: object, **kwargs: object) -> None:
        self, *rest = args
        assert isinstance(self, TemplateNamespace)
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def make_jinja_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = TemplateNamespace
    return environment


def copy_plain(value: object, write: Callable[[str], str] = str) -> object:
    """A copy of plain JSON types, through which templates reach nothing else. `write` converts strings."""
    if type(value) is str:
        return write(value)
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {copy_plain(key, write): copy_plain(item, write) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_plain(item, write) for item in value]
    return f"<{type(value).__name__}>"


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"A chat template can't store the attribute {name!r} on a namespace.")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON. Unlike Jinja's own filter it escapes nothing for HTML."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return text.replace(_ESCAPED_MARK, CONTROL_MARK) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
