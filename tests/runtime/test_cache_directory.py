"""Directories of the cache are deleted when they were not used for a month."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from arbora.runtime.cache_directory import KEPT_S, note_use

DAY_S = 24 * 3600.0


def make(directory: Path, *ages_s: float) -> list[Path]:
    """Directories that were last used so long ago."""
    made = [directory / f"code-{number}" for number in range(len(ages_s))]
    for path, age_s in zip(made, ages_s, strict=True):
        (path / "inner").mkdir(parents=True)
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    return made


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4])
def test_those_used_last_are_kept_though_they_are_old(tmp_path: Path, most: int) -> None:
    made = make(tmp_path, 0.0, 2 * KEPT_S, 3 * KEPT_S, 4 * KEPT_S)
    note_use(made[0], most=most)
    assert [path.exists() for path in made] == [number < max(1, most) for number in range(4)]


def test_a_use_keeps_a_directory_for_another_month(tmp_path: Path) -> None:
    old, used = make(tmp_path, KEPT_S + DAY_S, KEPT_S + DAY_S)
    note_use(used)
    assert used.exists() and not old.exists()
    assert time.time() - used.stat().st_mtime < DAY_S


def test_directories_used_in_the_last_month_and_other_names_are_kept(tmp_path: Path) -> None:
    made = make(tmp_path, 0.0, KEPT_S - DAY_S, 2 * KEPT_S)
    other = made[2].rename(tmp_path / "other")
    note_use(made[0], "code-*")
    assert made[1].exists() and other.exists()


def test_a_directory_that_does_not_exist_is_no_error(tmp_path: Path) -> None:
    note_use(tmp_path / "nothing" / "here")
