"""Regexes as V8 reads them: with the flag u, or without it if it refuses the pattern then."""

from __future__ import annotations

import json
from collections.abc import Sequence

from py_mini_racer import MiniRacer

_FOUND = """
function found(pattern, texts) {
  for (const flags of ['u', '']) {
    let regex;
    try { regex = new RegExp(pattern, flags) } catch { continue }
    return JSON.stringify([flags, texts.map(text => regex.test(text))]);
  }
  return 'null';
}
"""


class JavaScript:
    def __init__(self) -> None:
        self._context = MiniRacer()
        self._context.eval(_FOUND)

    def found(self, pattern: str, texts: Sequence[str]) -> tuple[str, list[bool]] | None:
        """The flags, and whether the pattern is found in each of the texts; None if it is no regex."""
        answer = self._context.eval(f"found({json.dumps(pattern)}, {json.dumps(texts)})")
        assert isinstance(answer, str)
        read = json.loads(answer)
        return None if read is None else (read[0], read[1])
