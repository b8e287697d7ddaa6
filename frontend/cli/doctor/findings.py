"""The findings of checks of this machine."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """`fix` says what to do about a warning or an error."""

    name: str
    level: Level
    text: str
    fix: str = ""
