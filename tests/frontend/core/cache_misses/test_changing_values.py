"""Lines that differ in a time, a date or an id alone."""

from __future__ import annotations

import pytest
from arbora.frontend.core.cache_misses.causes import find_changing_value


@pytest.mark.parametrize(
    ("kind", "line", "earlier"),
    [
        ("time", "It is 10:31:07.", "It is 9:05 PM."),
        ("time", "now: 2026-11-23T10:31:07Z", "now: 2026-11-22T23:59:59+01:00"),
        ("time", "since 1795259273", "since 1795259280"),
        ("date", "Today is Monday, November 23, 2026.", "Today is Tuesday, Nov 24, 2026."),
        ("date", "Date: 23.11.2026", "Date: 24.11.2026"),
        ("uuid", "a 0f3a5b1c-3c1e-4a5d-9d0e-0d6f0a4f2b11", "a 1f3a5b1c-3c1e-4a5d-9d0e-0d6f0a4f2b11"),
        ("id", "request req_011CSHoEeqs5C35K2", "request req_022CSHoEeqs5C35K2"),
        ("id", "commit 3f92a40c", "commit 7c44573d"),
        ("billing_header", "x-anthropic-billing-header: cch=1f2e3;", "x-anthropic-billing-header: cch=2;"),
        ("several", "2026-11-23 by req_011CSHoEeqs5C", "2026-11-24 by req_022CSHoEeqs5C"),
    ],
)
def test_a_line_that_differs_only_there(kind: str, line: str, earlier: str) -> None:
    assert find_changing_value(line, earlier) == kind


@pytest.mark.parametrize(
    ("line", "earlier"),
    [
        ("Be kind.", "Be rude."),
        ("It is 10:31 in Oslo.", "It is 10:32 in Rome."),
        ("You have 3 files.", "You have 4 files."),
        ("The same 10:31.", "The same 10:31."),
        ("facades and beaches", "cascades and beaches"),
    ],
)
def test_a_line_that_differs_elsewhere(line: str, earlier: str) -> None:
    assert find_changing_value(line, earlier) is None
