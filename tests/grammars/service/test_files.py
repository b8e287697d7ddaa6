"""Compiled grammars on disk: the files that are kept, and the files that are never used."""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from arbora.grammars import Automaton, GrammarFiles
from arbora.grammars.masks.stack import StackMasks
from arbora.grammars.masks.token_trie import make_tries
from arbora.grammars.regex.byte_automaton import compile_regex
from arbora.grammars.service.builder import add_masks
from grammar_world import compiled, compiler

MASKS = StackMasks(make_tries([(bytes([byte]), byte) for byte in range(256)], (256,), 257))


def automaton(key: str = "key") -> Automaton:
    return add_masks(key, compile_regex("a|bc*"), MASKS)


def files(directory: Path, vocabulary: str = "bytes", max_bytes: int = 1 << 20) -> GrammarFiles:
    return GrammarFiles(directory, vocabulary, max_bytes)


def the_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_a_stored_grammar_is_the_same_in_another_process(tmp_path: Path) -> None:
    made = automaton()
    files(tmp_path).put(made)
    kept = files(tmp_path).get("key")
    assert kept is not None
    for part, names in (
        ("machine", [field.name for field in fields(made.machine)]),
        ("tables", made.tables.__struct_fields__),
    ):
        for name in names:
            before, after = (getattr(getattr(one, part), name) for one in (made, kept))
            assert np.array_equal(before, after) and type(before) is type(after)
            assert not isinstance(before, np.ndarray) or before.dtype == after.dtype
    assert kept.nbytes == made.nbytes


def test_grammars_of_other_keys_and_vocabularies_are_not_mixed_up(tmp_path: Path) -> None:
    files(tmp_path).put(automaton())
    assert files(tmp_path).get("other") is None
    assert files(tmp_path, "another vocabulary").get("key") is None


@pytest.mark.parametrize("damage", ["torn", "changed", "empty", "foreign"])
def test_a_damaged_file_is_reported_and_not_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    files(tmp_path).put(automaton())
    path = the_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    files(tmp_path / "others").put(automaton("other"))
    other = the_file(tmp_path / "others").read_bytes()
    content = {"torn": bytes(data[:-9]), "changed": bytes(data), "empty": b"", "foreign": other}[damage]
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert files(tmp_path).get("key") is None
    assert str(path) in caplog.text
    files(tmp_path).put(automaton())
    assert files(tmp_path).get("key") is not None


def test_the_least_recently_used_files_are_deleted_past_the_limit(tmp_path: Path) -> None:
    files(tmp_path).put(automaton("a"))
    size = the_file(tmp_path).stat().st_size
    kept = files(tmp_path, max_bytes=3 * size + size // 2)
    for key in ("b", "c"):
        kept.put(automaton(key))
    assert kept.get("a") is not None
    kept.put(automaton("d"))
    assert [key for key in "abcd" if kept.get(key) is not None] == ["a", "c", "d"]
    assert len(list(tmp_path.iterdir())) == 3


def test_the_age_of_files_survives_the_process(tmp_path: Path) -> None:
    first = files(tmp_path)
    for age, key in ((9, "a"), (5, "b"), (7, "c")):
        first.put(automaton(key))
        newest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
        os.utime(newest, (1000 - age, 1000 - age))
    size = newest.stat().st_size
    files(tmp_path, max_bytes=3 * size + size // 2).put(automaton("d"))
    assert [key for key in "abcd" if first.get(key) is not None] == ["b", "c", "d"]


def test_a_directory_that_cannot_be_used_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = files(tmp_path / "file" / "directory")
    kept.put(automaton())
    assert kept.get("key") is None


def test_a_directory_that_is_only_readable_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path) -> None:
        raise PermissionError

    files(tmp_path).put(automaton())
    monkeypatch.setattr(os, "utime", forbid)
    assert files(tmp_path).get("key") is not None


def test_a_grammar_that_an_earlier_server_compiled_needs_no_worker(tmp_path: Path) -> None:
    schema = {"type": "array", "items": {"enum": ["yes", "no"]}}
    before = compiler(files=files(tmp_path))
    made = compiled(before, "json_schema", schema)
    before.close()
    after = compiler(files=files(tmp_path))
    after._builders.run = None  # type: ignore[method-assign, assignment]
    kept = compiled(after, "json_schema", schema)
    after.close()
    assert isinstance(made, Automaton) and isinstance(kept, Automaton)
    assert kept.key == made.key
    assert np.array_equal(kept.tables.list_tokens, made.tables.list_tokens)
