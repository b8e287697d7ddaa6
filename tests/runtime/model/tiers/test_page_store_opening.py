"""Opening a page store: errors, and the hash of the model that its pages depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.tiers import open_page_store, page_model
from arbora.runtime.model.tiers.disk import FILE_NAME, DiskStore, StoredPage
from arbora.runtime.model.tiers.file_hashes import FileHashes
from page_world import PAGE_BYTES
from step_driver import serve_config


def test_host_memory_too_small_for_a_page_is_refused(tmp_path: Path) -> None:
    config = serve_config(tmp_path, host_cache=PAGE_BYTES - 1)
    with pytest.raises(ConfigError, match=r"--host-cache 1\.4KiB: a page .* takes"):
        open_page_store(config, PAGE_BYTES, torch.device("cpu"))


def test_a_disk_cache_too_small_for_one_write_is_refused_and_loses_nothing(
    tmp_path: Path,
) -> None:
    disk = DiskStore(tmp_path, 1 << 30)
    disk.write([StoredPage(bytes(16), "", memoryview(bytes(PAGE_BYTES)))])
    disk.close()
    config = serve_config(tmp_path, disk_cache=tmp_path, disk_cache_size=10)
    with pytest.raises(ConfigError, match=r"--disk-cache .*,10B: 8 pages .* take"):
        open_page_store(config, PAGE_BYTES, torch.device("cpu"))
    assert DiskStore(tmp_path, 1 << 30).keys == {bytes(16)}


def test_a_lower_limit_of_the_disk_cache_holds_from_the_start(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, 1 << 30)
    content = memoryview(bytes(PAGE_BYTES))
    disk.write([StoredPage(bytes([number] * 16), "", content) for number in range(200)])
    disk.close()
    limit = disk_bytes(tmp_path) // 2
    config = serve_config(tmp_path, disk_cache=tmp_path, disk_cache_size=limit)
    store = open_page_store(config, PAGE_BYTES, torch.device("cpu"))
    assert store is not None
    assert disk_bytes(tmp_path) <= limit


def disk_bytes(directory: Path) -> int:
    return (directory / FILE_NAME).stat().st_size


def test_pages_of_another_model_dtype_or_shape_have_other_names(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"weights")
    store = open_page_store(serve_config(tmp_path, disk_cache=tmp_path), PAGE_BYTES, torch.device("cpu"))
    assert store is not None
    positions = b"positions"
    names = [
        page_model(store, "shape", torch.float32, positions, [weights]),
        page_model(store, "other", torch.float32, positions, [weights]),
        page_model(store, "shape", torch.bfloat16, positions, [weights]),
        page_model(store, "shape", torch.float32, b"others", [weights]),
    ]
    weights.write_bytes(b"Weights")
    names.append(page_model(store, "shape", torch.float32, positions, [weights]))
    assert len(set(names)) == 5
    weights.write_bytes(b"weights")
    assert page_model(store, "shape", torch.float32, positions, [weights]) == names[0]


def test_weights_are_hashed_again_only_if_they_were_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    digest: Any = hashlib.file_digest

    def spy(file: Any, how: str) -> Any:
        hashed.append(file.name)
        return digest(file, how)

    monkeypatch.setattr(hashlib, "file_digest", spy)
    memory, files = tmp_path / "weights.json", [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(file.name.encode() * 1000)
    first = FileHashes(memory).hash_all(files)
    assert len(hashed) == 2
    assert FileHashes(memory).hash_all(files) == first
    assert len(hashed) == 2
    files[0].write_bytes(b"c" * 1000)
    second = FileHashes(memory).hash_all(files)
    assert hashed[2:] == [str(files[0])]
    assert (second[0] != first[0], second[1]) == (True, first[1])
    memory.write_text("{")
    assert FileHashes(memory).hash_all(files) == second
    assert FileHashes(None).hash_all(reversed(files)) == second[::-1]
    assert len(hashed) == 7
