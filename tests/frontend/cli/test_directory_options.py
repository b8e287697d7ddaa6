"""The options of caches and stored data: tiers, directories and their sizes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from arbora.frontend.cli.main import (
    main,
)
from arbora.frontend.launch import options
from arbora.runtime.errors import ConfigError
from model_options import configured


def test_tiers_have_sizes_and_a_directory(model: Path, tmp_path: Path) -> None:
    assert (configured(model).host_cache, configured(model).disk_cache) == (0, None)
    config = configured(model, "--host-cache", "2GiB", "--disk-cache", f"{tmp_path},1GB")
    assert config.host_cache == 2 << 30
    assert config.disk_cache == tmp_path
    assert config.disk_cache_size == 10**9


def test_options_that_keep_prefixes_need_a_prefix_cache(model: Path) -> None:
    for flag, value in (("--host-cache", "1GiB"), ("--remote-cache", "redis://a"), ("--pin-memory", "1MiB")):
        with pytest.raises(ConfigError, match=f"--debug uncached leaves nothing .*{flag}"):
            configured(model, "--debug", "uncached", flag, value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--prefill-at", "tcp://0.0.0.0:7000"),
            "--prefill-at tcp://0.0.0.0:7000: prompts travel there unencr",
        ),
        (("--prefill-at", "tcp://example.com:7000"), "an address of this machine"),
        (("--prefill-at", "127.0.0.1:7000"), "'127.0.0.1:7000' is no address. Expected tcp://HOST:PORT"),
        (("--prefill-from", "tcp://127.0.0.1:70000"), "--prefill-from .* is no address. Expected tcp://"),
        (("--prefill-from", ","), "there is no address in it"),
        (("--prefill-at", "tcp://[::1]:7000", "--replicas", "2"), "leave out --replicas and --also-serve"),
        (("--prefill-at", "ipc:///p", "--also-serve", "a=arbora-builtin"), "leave out --replicas and"),
        (("--prefill-from", "ipc:///p", "--also-serve", "a=arbora-builtin"), "leave out --also-serve"),
        (("--prefill-from", "ipc:///p", "--debug", "uncached"), "--debug uncached leaves nothing"),
    ],
)
def test_servers_that_share_prompts_need_an_address_and_one_model(
    model: Path, flags: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        configured(model, *flags)
    usual = configured(model, "--prefill-from", "tcp://localhost:7000,ipc:///p")
    assert usual.prefill_from == ("tcp://localhost:7000", "ipc:///p")


def test_a_remote_cache_without_its_package_is_refused_at_the_start(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "redis" else name)
    assert main(["serve", str(model), "--remote-cache", "redis://a"]) == 2
    refusal = capsys.readouterr().err
    assert "--remote-cache: the package redis is missing" in refusal
    assert f"`{sys.executable} -m pip install redis`" in refusal


def test_a_size_of_the_disk_cache_needs_one(model: Path) -> None:
    with pytest.raises(ConfigError, match="ARBORA_DISK_CACHE ,1GB: expected a directory's path"):
        configured(model, ARBORA_DISK_CACHE=",1GB")


def test_the_data_directory_may_have_a_size_and_be_the_default_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(model, "--data-dir", f"{tmp_path}/a,b,1GB")
    assert (config.data_dir, config.data_size) == (tmp_path / "a,b", 10**9)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config = configured(model, "--data-dir", ",2GiB")
    assert (config.data_dir, config.data_size) == (tmp_path / "arbora", 2 << 30)
    with pytest.raises(ConfigError, match="--data-dir off,1GB: a size has no meaning with off"):
        configured(model, "--data-dir", "off,1GB")


def test_packed_weights_are_kept_in_the_cache_unless_another_directory_is_given(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert configured(model).packed_weights == tmp_path / "arbora" / "packed"
    assert configured(model, "--packed-weights", str(tmp_path / "kept")).packed_weights == tmp_path / "kept"
    assert configured(model, "--packed-weights", "off").packed_weights is None
    with pytest.raises(ConfigError, match=r"--packed-weights .* but this is a file"):
        configured(model, "--packed-weights", model / "config.json")


def test_pages_are_written_back_or_through(model: Path, tmp_path: Path) -> None:
    disk = ("--disk-cache", str(tmp_path))
    assert configured(model, *disk).write_policy == "write_back"
    assert configured(model, *disk, "--write-policy", "write_through").write_policy == "write_through"
    with pytest.raises(ConfigError, match="expected one of write_back, write_through"):
        configured(model, *disk, "--write-policy", "through")
    with pytest.raises(
        ConfigError, match="--write-policy is that of --disk-cache and --remote-cache: give one"
    ):
        configured(model, "--write-policy", "write_through")


def test_a_disk_cache_must_not_be_a_file(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: expected a directory, but this is a file"):
        configured(model, "--disk-cache", model / "config.json")


@pytest.mark.parametrize("name", ["{model}/config.json/pages", "/proc/pages", "/proc"])
def test_a_disk_cache_where_nothing_can_be_written_is_refused_at_the_start(model: Path, name: str) -> None:
    directory = name.format(model=model)
    problem = f"{re.escape(directory)}: it can't be made or written \\("
    with pytest.raises(ConfigError, match=f"--disk-cache {problem}"):
        configured(model, "--disk-cache", directory)
    with pytest.raises(ConfigError, match=f"ARBORA_DISK_CACHE {problem}"):
        configured(model, ARBORA_DISK_CACHE=directory)


def test_the_directory_of_a_disk_cache_is_made_for_its_owner_alone(model: Path, tmp_path: Path) -> None:
    configured(model, "--disk-cache", tmp_path / "kept" / "pages")
    assert (tmp_path / "kept" / "pages").stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "kept" / "pages").iterdir())


@pytest.mark.parametrize("name", ["{model}/config.json/data", "/proc/data", "/proc"])
def test_a_data_directory_where_nothing_can_be_written_is_refused_at_the_start(
    model: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = name.format(model=model)
    assert main(["serve", str(model), "--data-dir", directory]) == 2
    refusal = capsys.readouterr().err
    assert f"error: --data-dir {directory}: it can't be made or written (" in refusal
    assert "choose another directory" in refusal


def test_a_server_stores_nothing_and_says_so_if_the_default_data_directory_cant_be_written(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/data")
    assert configured(model).data_dir is None
    (warning,) = caplog.messages
    assert warning.startswith("/proc/data/arbora: it can't be made or written (")
    assert "no responses, files or batches are stored" in warning and "--data-dir" in warning
    caplog.clear()
    assert configured(model, "--data-dir", "off").data_dir is None
    assert not caplog.messages


def test_the_default_data_directory_is_made_for_its_owner_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert configured(model).data_dir == tmp_path / "share" / "arbora"
    assert (tmp_path / "share" / "arbora").stat().st_mode & 0o777 == 0o700
