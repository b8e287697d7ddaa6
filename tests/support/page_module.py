"""Modules of the page at / in V8."""

from __future__ import annotations

import json
import re
from typing import Any

from arbora.frontend.page.assets import FOLDER
from py_mini_racer import MiniRacer

_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const))", re.MULTILINE)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)


class PageModule:
    """Modules of the page, each after those that it imports. Their names are globals of a V8 context."""

    def __init__(self, *names: str) -> None:
        self._context = MiniRacer()
        for number, name in enumerate(names):
            source = (FOLDER / f"{name}.js").read_text()
            missing = set(_IMPORT.findall(source)) - set(names[:number])
            assert not missing, f"{name}.js imports {missing}"
            self._context.eval(_EXPORT.sub("", _IMPORT.sub("", source)))

    def run(self, expression: str, **values: Any) -> Any:
        """The value of an expression, as JSON has it. `values` are names in it."""
        names = ", ".join(values)
        given = ", ".join(json.dumps(value) for value in values.values())
        text = self._context.eval(f"JSON.stringify((({names}) => ({expression}))({given})) ?? 'null'")
        assert isinstance(text, str)
        return json.loads(text)

    def error(self, expression: str, **values: Any) -> str:
        """The message of the error that an expression throws."""
        caught = (
            f"(() => {{ try {{ {expression}; return null; }} catch (error) {{ return error.message; }} }})()"
        )
        message = self.run(caught, **values)
        assert isinstance(message, str), "no error"
        return message
