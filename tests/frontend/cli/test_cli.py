"""The command line: its options, their variables and defaults, and the errors that name a wrong one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from arbora.frontend.cli.main import (
    build_parser,
    main,
    serve_config,
    with_values,
)
from arbora.frontend.launch import options
from arbora.frontend.launch.options import from_environment, unknown_variables
from arbora.frontend.launch.program_name import program_name
from arbora.runtime.api_keys import ApiKey, plain_key
from arbora.runtime.config import OPTIONS, load_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.option_values import Option
from model_options import configured, make_model

PATIENCE = 60.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path)


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


def plain(*keys: str) -> tuple[ApiKey, ...]:
    return tuple(map(plain_key, keys))


def test_the_defaults_serve_this_machine_alone(model: Path) -> None:
    config = configured(model)
    assert (config.host, config.port, config.page_size, config.prefix_cache) == ("127.0.0.1", 8000, 16, True)
    assert config.model == model


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 * 2**30), ("500MB", 500_000_000), ("1.5gib", 3 * 2**29), ("2k", 2000), ("4194304", 4194304)],
)
def test_a_size_has_decimal_or_binary_units(model: Path, text: str, size: int) -> None:
    assert configured(model, "--kv-memory", text).kv_memory == size


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


def test_repeated_api_keys_all_count(model: Path) -> None:
    assert configured(model, "--api-key", "one", "--api-key", "two").api_keys == plain("one", "two")


def test_allowed_hosts_are_names_alone(model: Path) -> None:
    config = configured(model, "--host", "0.0.0.0,a.example, b.example")
    assert (config.host, config.allowed_hosts) == ("0.0.0.0", ("a.example", "b.example"))
    for wrong in ("http://a.example", "a.example:80"):
        with pytest.raises(ConfigError, match="a host's name alone"):
            configured(model, "--host", f"::1,{wrong}")
    assert configured(model, "--host", "::1,*").allowed_hosts == ("*",)
    with pytest.raises(ConfigError, match="stands alone"):
        configured(model, "--host", "::1,*.example.com")


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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--log-requests", "MODEL"], "text"),
        (["MODEL", "--log-requests"], "text"),
        (["--log-requests", "json", "MODEL"], "json"),
        (["MODEL", "--log-requests=json", "--port", "0"], "json"),
        (["MODEL"], None),
    ],
)
def test_the_log_of_requests_has_a_form_which_may_be_left_out(
    model: Path, flags: list[str], expected: str | None
) -> None:
    arguments = with_values(["serve", *(str(model) if flag == "MODEL" else flag for flag in flags)])
    config = serve_config(vars(build_parser().parse_args(arguments)), {})
    assert (config.model, config.log_requests) == (model, expected)


def test_an_unknown_form_of_the_log_of_requests_is_refused(model: Path) -> None:
    arguments = with_values(["serve", str(model), "--log-requests", "xml"])
    with pytest.raises(ConfigError, match=r"--log-requests xml: expected one of text, json, json\+texts\."):
        serve_config(vars(build_parser().parse_args(arguments)), {})


def test_texts_are_logged_only_in_json_lines(model: Path) -> None:
    assert configured(model, ARBORA_LOG_REQUESTS="json+texts").log_texts
    assert not configured(model, ARBORA_LOG_REQUESTS="json").log_texts
    with pytest.raises(ConfigError, match=r"text\+texts: expected one of text, json, json\+texts\."):
        configured(model, ARBORA_LOG_REQUESTS="text+texts")


def test_the_variable_of_a_switch_that_became_a_choice_still_works(model: Path) -> None:
    assert configured(model, ARBORA_LOG_REQUESTS="1").log_requests == "text"
    assert configured(model, ARBORA_LOG_REQUESTS="0").log_requests is None
    with pytest.raises(ConfigError, match="ARBORA_LOG_REQUESTS xml: expected one of text, json"):
        configured(model, ARBORA_LOG_REQUESTS="xml")


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


def test_defaults_of_requests_are_words_of_their_fields(model: Path) -> None:
    config = configured(model, "--request-defaults", "whitespace=compact,unenforced=allow")
    assert (config.whitespace, config.unenforced) == ("compact", "allow")
    assert config.additional_properties == "declared"
    with pytest.raises(ConfigError, match="with one of the fields additional_properties, whitespace"):
        configured(model, "--request-defaults", "white=compact")
    with pytest.raises(ConfigError, match="expected unenforced= one of refuse, allow"):
        configured(model, "--request-defaults", "unenforced=yes")


def test_the_variable_of_an_earlier_option_is_refused_with_the_new_one(model: Path) -> None:
    with pytest.raises(ConfigError, match="ARBORA_API_KEY_FILE is now ARBORA_API_KEY=@FILE"):
        configured(model, ARBORA_API_KEY_FILE="keys")


def test_only_one_file_of_keys_is_taken(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key @b: there is a file of keys already, @a"):
        configured(model, "--api-key", "@a", "--api-key", "@b")


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


def test_the_help_shows_each_default_once_and_as_it_may_be_given() -> None:
    for option in OPTIONS:
        if option.metavar and option.name != "device":  # its default depends on the machine
            (shown,) = re.findall(r"\(default: ([^;)]*)", option.full_help)
            assert option.default in (None, 0, (), False) or _read(option, shown) == option.default


def _read(option: Option, text: str) -> object:
    value = option.read(text)
    return value[option.field] if isinstance(value, dict) else value


def test_the_memory_for_pins_may_be_zero(model: Path) -> None:
    assert configured(model).pin_memory is None
    assert configured(model, "--pin-memory", "0").pin_memory == 0
    assert configured(model, "--pin-memory", "1MiB").pin_memory == 2**20


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--port", "70000", "--port 70000: expected a whole number from 0 to 65535"),
        ("--port", "http", "--port http: expected a whole number"),
        ("--debug", "eagre", "--debug eagre: there is no eagre. Choose from eager, uncached, invariants."),
        ("--kv-memory", "much", "--kv-memory much: expected a size such as 4GiB"),
        ("--kv-memory", "0", "--kv-memory 0: expected a size"),
        ("--kv-memory", "4", "--kv-memory 4: this is 4 bytes. Did you mean 4GiB?"),
        ("--kv-memory", "4.5", "--kv-memory 4.5: this is 4 bytes. Did you mean 4.5GiB?"),
        ("--kv-memory", "4i", "--kv-memory 4i: expected a size such as 4GiB"),
        ("--host-cache", "4096", "--host-cache 4096: this is 4096 bytes. Did you mean 4096MiB?"),
        ("--kv-memory", "4Gb", "--kv-memory 4Gb: Gb may mean bits. Write GB for bytes."),
        ("--kv-memory", "1.5 Mib", "--kv-memory 1.5 Mib: Mib may mean bits. Write MiB for bytes."),
        ("--kv-memory", "9" * 400 + "GiB", "GiB: expected a size"),
        ("--pin-memory", "some", "--pin-memory some: expected a size"),
        ("--device", "tpu", "--device tpu: expected one of cpu, cuda"),
        ("--dtype", "int8", "--dtype int8: expected one of auto, float32"),
        ("--quantize", "int2", "--quantize int2: expected one of int8, int4, fp8"),
        ("--quantize", "fp4", "--quantize fp4: expected one of int8, int4, fp8"),
        ("--step-ms", "nan", "--step-ms nan: expected milliseconds"),
        ("--max-running", "0", "--max-running 0: expected a whole number from 1"),
        ("--log-level", "loud", "--log-level loud: expected one of debug"),
        ("--remote-cache", "redis://host:port", "--remote-cache redis://host:port: Port could not be cast"),
        (
            "--remote-cache",
            "redis://:sec/r@t@host:port",
            "--remote-cache redis://…@host:port: Port could not",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag_and_the_allowed_values(
    model: Path, flag: str, value: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        configured(model, flag, value)


def test_options_that_another_device_has_are_refused_before_anything_starts(model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-dtype fp8: only the CUDA .*--kv-dtype int8, .*--device cuda"
    ):
        configured(model, "--device", "cpu", "--kv-dtype", "fp8")
    with pytest.raises(ConfigError, match="--deterministic: only the CPU kernels"):
        configured(model, "--device", "cuda", "--deterministic")
    assert configured(model, "--device", "cuda", "--kv-dtype", "fp8").kv_dtype == "fp8"


def test_a_model_is_quantized_on_both_devices(model: Path) -> None:
    assert configured(model, "--quantize", "int4", "--device", "cpu").quantize == "int4"
    assert configured(model, "--quantize", "int4", "--device", "cuda").quantize == "int4"
    assert configured(model).quantize is None


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


@pytest.mark.parametrize(("text", "tokens"), [("77", 77), ("8K", 8192), ("8k", 8000)])
def test_a_context_may_be_given_in_thousands(model: Path, text: str, tokens: int) -> None:
    assert configured(model, "--max-model-len", text).max_model_len == tokens
    with pytest.raises(
        ConfigError, match="--max-model-len 8q: expected a whole number from 1 on, or one such as"
    ):
        configured(model, "--max-model-len", "8q")


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
