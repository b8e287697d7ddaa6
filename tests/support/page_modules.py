"""Modules of the page, run by V8 without a browser."""

from __future__ import annotations

import json
import re
from typing import Any

from arbora.frontend.page.assets import FOLDER
from py_mini_racer import MiniRacer

_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const))", re.MULTILINE)


class PageModule:
    """One module that imports no others. Its exported names are globals of its own V8 context."""

    def __init__(self, name: str) -> None:
        source = (FOLDER / f"{name}.js").read_text()
        assert "import {" not in source, f"{name}.js imports other modules"
        self._context = MiniRacer()
        self._context.eval(_EXPORT.sub("", source))

    def run(self, expression: str, **values: Any) -> Any:
        """The value of an expression, as JSON has it. `values` are names in it."""
        names = ", ".join(values)
        given = ", ".join(json.dumps(value) for value in values.values())
        text = self._context.eval(f"JSON.stringify((({names}) => ({expression}))({given})) ?? 'null'")
        assert isinstance(text, str)
        return json.loads(text)
