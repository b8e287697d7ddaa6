"""Reads the MODEL that a user wrote: a well-known name, a repository of the hub, or a path."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ..core.text.close_names import did_you_mean
from .known_models import KNOWN_MODELS, find_known, known_names

PATH_STARTS = ("/", "./", "../", "~")
_HOST = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_HUB_NAME = re.compile(
    r"(?P<id>[\w.-]+/[\w.-]+)(?:/(?:tree|blob|resolve)/main(?:/(?P<file>[^:?#]+\.gguf))?)?/?"
    r"(?:[?#].*)?(?::(?P<tag>[\w.-]+))?",
    re.ASCII,
)


class HubName(NamedTuple):
    """A repository of the hub."""

    id: str
    """owner/name"""
    tag: str | None = None
    """a quantization of a GGUF repository, or the name of one of its files"""

    def __str__(self) -> str:
        return self.id if self.tag is None else f"{self.id}:{self.tag}"


def read_hub_name(text: str) -> HubName | None:
    """Reads OWNER/NAME, OWNER/NAME:TAG, or either after hf.co/ or https://huggingface.co/; None for another
    text. The hub's few models without an owner don't count, because a directory could have the same name."""
    host = _HOST.match(text)
    found = _HUB_NAME.fullmatch(text[host.end() :] if host else text)
    if found is None or (host is None and found["id"] != text.partition(":")[0]):
        return None
    return HubName(found["id"], found["tag"] or found["file"])


def is_path(text: str) -> bool:
    """Whether the text can only be a path, or something exists there."""
    if text.startswith(PATH_STARTS) or os.path.exists(text):
        return True
    name = read_hub_name(text)
    return text.lower().endswith(".gguf") and (name is None or name.tag is None)


def resolve_alias(text: str) -> str:
    """The MODEL that a well-known name stands for; any other MODEL as it is."""
    known = None if is_path(text) else find_known(text)
    return text if known is None else known.source


def suggest_names(text: str) -> str:
    """A sentence with the well-known names that a misspelt one may mean; empty if none is close."""
    family = text.lower().partition(":")[0]
    others = [name for name in known_names() if name.startswith(f"{family}:")]
    if ":" in text and others:
        return f" {family} is known as {', '.join(others)}."
    return did_you_mean(text, known_names())


def short_name(source: str) -> str:
    """The well-known name of a source, such as qwen3:8b; the source as it is if it has none."""
    names = (model.name for model in KNOWN_MODELS if model.source.lower() == source.lower())
    return next(names, source)


def name_in_api(text: str) -> str:
    """The name that the server has by default for a MODEL that is no path."""
    known = find_known(text)
    if known is not None:
        return known.name
    hub = read_hub_name(text)
    return text if hub is None else str(hub)
