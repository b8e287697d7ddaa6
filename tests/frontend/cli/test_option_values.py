"""The values that options take, their defaults, and the errors that name a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.frontend.cli.main import (
    build_parser,
    serve_config,
)
from arbora.runtime.errors import ConfigError
from model_options import configured


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
    ("flags", "expected"),
    [
        (["--log-requests", "MODEL"], "text"),
        (["MODEL", "--log-requests"], "text"),
        (["--log-requests", "json", "MODEL"], "json"),
        (["MODEL", "--log-requests=json", "--port", "0"], "json"),
        (["MODEL"], "text"),
        (["MODEL", "--log-requests", "off"], None),
    ],
)
def test_the_log_of_requests_has_a_form_which_may_be_left_out(
    model: Path, flags: list[str], expected: str | None
) -> None:
    arguments = ["serve", *(str(model) if flag == "MODEL" else flag for flag in flags)]
    config = serve_config(vars(build_parser().parse_args(arguments)), {})
    assert (config.model, config.log_requests) == (model, expected)


def test_an_unknown_form_of_the_log_of_requests_is_refused(model: Path) -> None:
    arguments = ["serve", str(model), "--log-requests", "xml"]
    with pytest.raises(ConfigError, match=r"--log-requests xml: expected one of text, json, json\+texts\."):
        serve_config(vars(build_parser().parse_args(arguments)), {})


def test_a_quiet_server_logs_only_warnings_and_errors(model: Path) -> None:
    assert (
        configured(model, "--quiet").log_level == configured(model, ARBORA_QUIET="1").log_level == "warning"
    )
    assert configured(model, ARBORA_QUIET="0").log_level == configured(model).log_level == "info"
    for flags in (("--log-level", "debug"), ("--log-requests", "json")):
        with pytest.raises(
            ConfigError, match=rf"^--quiet: .* so {flags[0]} would have no effect\. Leave one"
        ):
            configured(model, "--quiet", *flags)


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


def test_defaults_of_requests_are_words_of_their_fields(model: Path) -> None:
    config = configured(model, "--request-defaults", "whitespace=compact,unenforced=allow")
    assert (config.whitespace, config.unenforced) == ("compact", "allow")
    assert config.additional_properties == "declared"
    with pytest.raises(ConfigError, match="with one of the fields additional_properties, whitespace"):
        configured(model, "--request-defaults", "white=compact")
    with pytest.raises(ConfigError, match="expected unenforced= one of annotations, refuse, allow"):
        configured(model, "--request-defaults", "unenforced=yes")


def test_the_memory_for_pins_may_be_zero(model: Path) -> None:
    assert configured(model).pin_memory is None
    assert configured(model, "--pin-memory", "0").pin_memory == 0
    assert configured(model, "--pin-memory", "1MiB").pin_memory == 2**20


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--host", "127.0.0.1:8239", "without a port. Write --host 127.0.0.1 --port 8239."),
        ("--host", "[::1]:80", "without a port. Write --host ::1 --port 80."),
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
        ("--device", "cuda:1", "--device cuda:1: expected one of cpu, cuda"),
        ("--dtype", "int8", "--dtype int8: expected one of auto, float32"),
        ("--quantize", "int2", "--quantize int2: expected one of int8, int4, fp8"),
        ("--quantize", "fp4", "--quantize fp4: expected one of int8, int4, fp8"),
        ("--step-ms", "nan", "--step-ms nan: expected milliseconds"),
        ("--max-running", "0", "--max-running 0: expected a whole number from 1"),
        ("--speculate", "0", "--speculate 0: expected auto or a .* from 1 to 15; for no drafts, write off."),
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--prefill-from", "tcp://127.0.0.1:7000"),
            "--tp 2: ranks do not support --prefill-at and --prefill-from",
        ),
        (("--max-loras", "2"), "--tp 2: ranks do not support --lora and --max-loras"),
        (("--model-impl", "transformers"), "--tp 2: ranks do not support --model-impl transformers"),
    ],
)
def test_options_that_ranks_do_not_support_are_refused(
    model: Path, options: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        configured(model, "--device", "cpu", "--tp", "2", *options)
    assert configured(model, "--device", "cpu", "--tp", "2").tp == 2
    assert configured(model, "--device", "cuda", "--tp", "2").tp == 2


def test_a_model_is_quantized_on_both_devices(model: Path) -> None:
    assert configured(model, "--quantize", "int4", "--device", "cpu").quantize == "int4"
    assert configured(model, "--quantize", "int4", "--device", "cuda").quantize == "int4"
    assert configured(model).quantize is None


@pytest.mark.parametrize(("text", "tokens"), [("77", 77), ("8K", 8192), ("8k", 8000)])
def test_a_context_may_be_given_in_thousands(model: Path, text: str, tokens: int) -> None:
    assert configured(model, "--max-model-len", text).max_model_len == tokens
    with pytest.raises(
        ConfigError, match="--max-model-len 8q: expected a whole number from 1 on, or one such as"
    ):
        configured(model, "--max-model-len", "8q")
