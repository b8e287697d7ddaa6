"""The options of API keys: keys, files of keys, and what they isolate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.runtime.api_keys import ApiKey, plain_key
from arbora.runtime.errors import ConfigError
from model_options import configured


def plain(*keys: str) -> tuple[ApiKey, ...]:
    return tuple(map(plain_key, keys))


def test_repeated_api_keys_all_count(model: Path) -> None:
    assert configured(model, "--api-key", "one", "--api-key", "two").api_keys == plain("one", "two")


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (("--api-key", ""), {}, "--api-key: there is no key in it"),
        (("--api-key", "", "--api-key", "one"), {}, "--api-key: there is no key in it"),
        (("--api-key", " , "), {"ARBORA_API_KEY": "one"}, "--api-key  ,: there is no key in it"),
        ((), {"ARBORA_API_KEY": ","}, "ARBORA_API_KEY ,: there is no key in it"),
    ],
)
def test_a_server_with_an_empty_key_does_not_start_without_keys(
    model: Path, flags: Sequence[str], environment: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        configured(model, *flags, **environment)


def test_keys_may_be_in_a_file(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\none  # Ada's\n\ntwo\n")
    path.chmod(0o600)
    assert configured(model, "--api-key", f"@{path}").api_keys == plain("one", "two")
    both = configured(model, "--api-key", "zero", "--api-key", f"@{path}")
    assert (both.api_keys, both.fixed_keys) == (plain("zero", "one", "two"), plain("zero"))
    assert not caplog.records
    path.chmod(0o644)
    configured(model, "--api-key", f"@{path}")
    assert f"run `chmod 600 {path}`" in caplog.text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "it can't be read \\(No such file"),
        ("# none\n", "there is no key in it"),
        ("one\ntwo three\n", "line 2 has a space within a key"),
    ],
)
def test_a_key_file_without_keys_is_refused(
    model: Path, tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"--api-key @{path}: {expected}"):
        configured(model, "--api-key", f"@{path}")


def test_metrics_can_only_be_protected_by_a_key(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--isolate: there are no keys.*--api-key @FILE"):
        configured(model, "--isolate", "metrics")


def test_keys_can_only_be_isolated_if_there_are_any(model: Path) -> None:
    assert configured(model, "--api-key", "one", "--isolate", "keys").isolate_keys
    with pytest.raises(ConfigError, match=r"--isolate: there are no keys.*--api-key @FILE"):
        configured(model, "--isolate", "keys,metrics")


def test_only_one_file_of_keys_is_taken(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key @b: there is a file of keys already, @a"):
        configured(model, "--api-key", "@a", "--api-key", "@b")


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_a_key_with_a_control_character_is_refused_without_writing_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--api-key", "one\x1b[2J"]) == 2
    expected = (
        "--api-key 'one\\x1b[2J': a key may not have the character U+001B, as no HTTP header may. Remove it."
    )
    assert capsys.readouterr().err == f"arbora: error: {expected}\n"
