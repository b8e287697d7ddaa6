"""The command line: its commands, the variables of its options, and what a start refuses first."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import arbora
import pytest
from arbora.frontend.cli.main import (
    main,
)
from arbora.frontend.launch.options import from_environment, unknown_variables
from arbora.frontend.launch.program_name import program_name
from arbora.runtime.api_keys import ApiKey, plain_key
from arbora.runtime.config import OPTIONS, load_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.option_values import Option
from model_options import configured
from tiny_models import tiny_config

PATIENCE = 60.0


def plain(*keys: str) -> tuple[ApiKey, ...]:
    return tuple(map(plain_key, keys))


def test_without_a_command_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().err
    assert "serve     start a server" in listed and "doctor    check this machine" in listed


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("serv", " Did you mean serve?"),
        ("benhc", " Did you mean bench?"),
        ("./model", f" Did you mean `{program_name()} serve ./model`?"),
        ("unlike", ""),
    ],
)
def test_an_unknown_command_is_refused_with_a_guess(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([name])
    refusal = capsys.readouterr().err
    assert f"there is no command {name}.{meant} The commands are serve, chat" in refusal


def test_every_option_has_an_environment_variable_of_its_name(model: Path) -> None:
    variables = {option.variable for option in OPTIONS}
    assert variables >= {"ARBORA_HOST", "ARBORA_MAX_MODEL_LEN", "ARBORA_API_KEY", "ARBORA_DETERMINISTIC"}
    config = configured(
        ARBORA_MODEL=str(model), ARBORA_MAX_MODEL_LEN="77", ARBORA_DEBUG="uncached", ARBORA_API_KEY="a,b"
    )
    assert (config.max_model_len, config.prefix_cache, config.api_keys) == (77, False, plain("a", "b"))


def test_a_flag_goes_before_its_variable(model: Path) -> None:
    assert configured(model, "--port", "1234", ARBORA_PORT="99").port == 1234


def test_an_empty_variable_counts_as_not_set() -> None:
    assert from_environment({"ARBORA_PORT": ""}) == {}


def test_the_variable_of_an_earlier_option_is_refused_with_the_new_one(model: Path) -> None:
    with pytest.raises(ConfigError, match="ARBORA_API_KEY_FILE is now ARBORA_API_KEY=@FILE"):
        configured(model, ARBORA_API_KEY_FILE="keys")


def test_the_help_shows_each_default_once_and_as_it_may_be_given() -> None:
    for option in OPTIONS:
        if option.metavar and option.name != "device":  # its default depends on the machine
            (shown,) = re.findall(r"\(default: ([^;)]*)", option.full_help)
            assert option.default in (None, 0, (), False) or _read(option, shown) == option.default


def _read(option: Option, text: str) -> object:
    value = option.read(text)
    return value[option.field] if isinstance(value, dict) else value


def test_a_wrong_variable_is_refused_under_its_own_name(model: Path) -> None:
    with pytest.raises(ConfigError, match="ARBORA_STEP_MS 0: expected milliseconds"):
        configured(model, ARBORA_STEP_MS="0")


def test_the_configuration_survives_the_way_to_the_children(model: Path, tmp_path: Path) -> None:
    config = configured(model, "--kv-memory", "1GiB", "--api-key", "secret")
    config.save(tmp_path)
    assert load_config(tmp_path) == config


def test_a_wrong_setting_ends_the_program_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "-1"]) == 2
    assert capsys.readouterr().err == "arbora: error: --port -1: expected a whole number from 0 to 65535.\n"


def test_an_unknown_environment_variable_is_named_with_the_closest_option() -> None:
    warning = unknown_variables({"ARBORA_PORTS": "1", "ARBORA_ZZZ": "1", "ARBORA_MODEL": "m", "PORT": "1"})
    assert warning == "ARBORA_PORTS has no effect. Did you mean ARBORA_PORT? ARBORA_ZZZ has no effect."
    assert unknown_variables({option.variable: "1" for option in OPTIONS}) == ""


def test_warnings_of_options_and_variables_look_like_all_others(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    keys.chmod(0o644)
    arguments = ["serve", str(model), "--host", "192.0.2.1", "--api-key", f"@{keys}"]
    said = subprocess.run(
        [sys.executable, "-P", "-m", "arbora", *arguments],
        env={**os.environ, "ARBORA_PORTS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stderr.splitlines()
    assert [line.partition(": ")[2].partition(" ")[0] for line in said] == ["warning:", "warning:", "error:"]
    assert all(line.startswith("arbora: ") for line in said)


def test_the_package_runs_in_its_own_folder(tmp_path: Path) -> None:
    tiny_config("lfm2").save_pretrained(tmp_path)
    said = subprocess.run(
        [sys.executable, "-m", "arbora", "plan", str(tmp_path)],
        cwd=Path(arbora.__file__).parent,
        env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stderr
    assert "it is served, by the code of transformers" in said


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("arbora 0.")


def test_a_port_in_use_is_known_before_anything_starts(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--host 127.0.0.1 --port {port}: can't listen there (Address already in use)." in error
    assert "Stop what uses the port" in error


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_the_error_names_an_address_that_this_machine_does_not_have(
    model: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(model), "--port", "0", "--host", host]) == 2
    assert "Choose an address of this machine with --host.\n" in capsys.readouterr().err
