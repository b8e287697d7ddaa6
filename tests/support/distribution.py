"""Which tests of a run with several processes go to the same process.

A file whose tests share a fixture goes to one process as a whole. Each function of other files is a unit of
its own. The files come first. So at the end the processes share short units, and none is left alone with a
long file.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SHARED = re.compile(r"""scope=["'](module|class|package|session)["']""")


@cache
def shares_fixtures(file: Path) -> bool:
    return _SHARED.search(file.read_text()) is not None


def unit_of(nodeid: str, root: Path) -> str:
    """The tests of a unit run in one process. A function is in one unit with all its parameters."""
    file = nodeid.partition("::")[0]
    return file if shares_fixtures(root / file) else nodeid.partition("[")[0]


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Starts the units in the order of the collected tests."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid, self.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a process of several
        items.sort(key=lambda item: not shares_fixtures(item.path))
