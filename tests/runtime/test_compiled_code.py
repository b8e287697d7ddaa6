"""The directories of numba's machine code: one for each version of the sources."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numba
import pytest
from arbora.grammars.jit import FOLDER
from arbora.grammars.masks import walks
from arbora.runtime import compiled_code
from arbora.runtime.cache_directory import KEPT_S
from arbora.runtime.compiled_code import CompiledNote, directory, use_directory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    folder = tmp_path / "kernels"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "constants.py").write_text("A = 1\n")
    return folder


def test_a_change_of_any_source_changes_the_directory(folder: Path) -> None:
    before = directory(folder)
    (folder / "inner" / "constants.py").write_text("A = 2\n")
    assert directory(folder) != before
    assert Path(before).parent == Path(directory(folder)).parent == folder.parent / "cache" / "arbora"


def test_the_environment_may_name_the_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    assert use_directory(folder) == directory(folder) == "/elsewhere"


def test_the_first_use_of_a_version_makes_its_directory_and_removes_old_ones(folder: Path) -> None:
    old = Path(use_directory(folder))
    long_ago = time.time() - 2 * KEPT_S
    os.utime(old, (long_ago, long_ago))
    (folder / "inner" / "constants.py").write_text("A = 2\n")
    assert Path(use_directory(folder)).is_dir() and not old.exists()


def test_a_directory_that_cannot_be_made_is_no_error(folder: Path) -> None:
    (folder.parent / "cache").write_text("a file")
    assert use_directory(folder) == directory(folder)


def test_only_old_code_of_other_versions_of_the_same_folder_is_removed(folder: Path) -> None:
    current = Path(directory(folder))
    recent = current.with_name("kernels-fedcba9876543210")
    other, grammars = current.with_name("kernels-0123456789abcdef"), current.with_name("grammars")
    for path in (current, recent, other, grammars):
        path.mkdir(parents=True)
    long_ago = time.time() - 2 * KEPT_S
    for path in (current, other, grammars):
        os.utime(path, (long_ago, long_ago))
    assert use_directory(folder) == str(current)
    assert current.exists() and recent.exists() and grammars.exists() and not other.exists()
    assert current.stat().st_mtime > long_ago + KEPT_S


def test_the_grammars_code_depends_on_their_sources_alone() -> None:
    grammars = compiled_code.directory(Path(walks.__file__).parents[1])
    caches = [each._cache for each in vars(walks).values() if hasattr(each, "_cache")]
    paths = [cache.cache_path for cache in caches if cache.cache_path is not None]
    assert Path(walks.__file__).parents[1] == FOLDER
    assert paths and all(path.startswith(grammars) for path in paths)
    assert grammars != numba.config.CACHE_DIR


def test_a_note_holds_until_a_source_changes(folder: Path) -> None:
    use_directory(folder)
    note = CompiledNote(folder)
    assert not note.holds()
    note.write()
    assert note.holds() and CompiledNote(folder).holds()
    (folder / "inner" / "constants.py").write_text("A = 2\n")
    assert not CompiledNote(folder).holds()
    CompiledNote(folder).write()  # its directory does not exist
    assert not CompiledNote(folder).holds()


@pytest.mark.parametrize("changed", ["metadata.version", "processor", "version"])
def test_a_note_names_the_versions_and_the_processor(
    folder: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))  # one directory for all versions
    before = CompiledNote(folder)
    before.write()
    monkeypatch.setattr(f"arbora.runtime.compiled_code.{changed}", lambda *_: "another")
    after = CompiledNote(folder)
    assert before.holds() and not after.holds()
    after.write()
    assert after.holds() and not before.holds()


def test_each_place_of_the_sources_has_a_note_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    CompiledNote(folder).write()
    copy = tmp_path / "copy" / folder.name
    shutil.copytree(folder, copy)
    assert CompiledNote(folder).holds() and not CompiledNote(copy).holds()


def test_a_note_does_not_hold_where_numba_cannot_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_directory(folder)
    note = CompiledNote(folder)
    note.write()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert not note.holds()
