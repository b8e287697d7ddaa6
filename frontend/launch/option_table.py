"""The options of a server, each written once: its flag, environment variable, keyword of `Engine`,
default, reading and help text all come from the table here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

from ...runtime.config import (
    Device,
    DType,
    KvDType,
    QuantizeMethod,
    ReasoningField,
    UnenforcedDefault,
    WritePolicy,
)
from ...runtime.errors import ConfigError
from ...runtime.grammar_spec import AdditionalProperties, Whitespace
from ..core.text.prompt_rules import RULES
from .option_values import (
    MAX_PAGE_SIZE,
    directory,
    directory_or_off,
    file,
    host,
    host_names,
    http_url,
    key_file,
    keys,
    log_format,
    milliseconds,
    model_names,
    one_of,
    origins,
    page_size,
    remote_url,
    rule_names,
    seconds,
    size_in_bytes,
    size_or_nothing,
    token_count,
    truth,
    whole_number,
)

LOG_LEVELS = ("debug", "info", "warning", "error")


class Setting(NamedTuple):
    """The value given for an option, and the name it was given under: `--port`, `ARBORA_PORT` or `port=`."""

    label: str
    value: object


class Option(NamedTuple):
    """`read` turns the text into a value or raises ValueError with the words that complete
    "--flag text: …". A `switch` takes no text; the others show `metavar` in the help."""

    name: str
    help: str
    read: Callable[[str], object]
    default: object = None
    metavar: str = ""
    switch: bool = False
    repeatable: bool = False
    alone: str = ""
    """the value of the flag without one; empty if the flag needs a value"""
    several: bool = False
    """one flag may have several values after it, as well as be repeated"""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ARBORA_" + self.name.upper()

    def value_of(self, setting: Setting | None) -> object:
        if setting is None or setting.value is None:
            return self.default
        try:
            return self.read(str(setting.value))
        except ValueError as error:
            raise ConfigError(f"{setting.label} {setting.value}".rstrip() + f": {error}") from error


OPTIONS = (
    Option("host", "address to listen on; 0.0.0.0 for every network interface", host, "127.0.0.1", "ADDRESS"),
    Option("port", "port to listen on; 0 lets the system choose", whole_number(0, 65535), 8000, "PORT"),
    Option(
        "uds",
        "path of a Unix socket to listen on instead of a port; the umask decides who may connect "
        "(default: --host and --port)",
        file,
        None,
        "PATH",
    ),
    Option(
        "ssl_certfile",
        "serve HTTPS with the certificate in this PEM file, followed by its issuers' (default: HTTP)",
        file,
        None,
        "FILE",
    ),
    Option(
        "ssl_keyfile",
        "the private key of that certificate, a PEM file without a password (default: in --ssl-certfile)",
        file,
        None,
        "FILE",
    ),
    Option(
        "device",
        "cpu or cuda (default: cuda if there is an NVIDIA GPU)",
        one_of(*get_args(Device)),
        None,
        "DEVICE",
    ),
    Option(
        "dtype",
        f"{', '.join(get_args(DType))}; auto: as the model says",
        one_of(*get_args(DType)),
        "auto",
        "DTYPE",
    ),
    Option(
        "quantize",
        "int8, int4 or fp8: quantize a model in 16 or 32 bits when it is loaded, and keep the result in "
        "~/.cache (default: as stored)",
        one_of(*get_args(QuantizeMethod)),
        None,
        "METHOD",
    ),
    Option(
        "kv_dtype",
        "dtype of the KV cache: auto, as --dtype; int8 or fp8: nearly twice the tokens in the same memory, "
        "less exact; fp8 on CUDA only",
        one_of(*get_args(KvDType)),
        "auto",
        "DTYPE",
    ),
    Option(
        "max_model_len",
        "longest prompt with its reply, in tokens; 8K is 8192, 8k is 8000 (default: what the model allows)",
        token_count,
        None,
        "TOKENS",
    ),
    Option(
        "kv_memory",
        "memory for the KV cache, such as 4GiB; a CPU takes it right after the start (default: from the free "
        "memory, at most 4GiB on a CPU, taken as pages are used)",
        size_in_bytes,
        None,
        "SIZE",
    ),
    Option(
        "pin_memory",
        "how much of the KV cache clients may pin, 0 for nothing (default: a quarter); isolated keys get "
        "equal shares",
        size_or_nothing,
        None,
        "SIZE",
    ),
    Option(
        "host_cache",
        "host memory for what no longer fits in the KV cache, such as 8GiB (default: none; 1GiB with "
        "--disk-cache or --remote-cache)",
        size_or_nothing,
        0,
        "SIZE",
    ),
    Option(
        "disk_cache",
        "directory to keep cached prefixes in: they outlive the server (default: none)",
        directory,
        None,
        "DIRECTORY",
    ),
    Option(
        "remote_cache",
        "a Valkey or Redis server that keeps cached prefixes for many servers, such as redis://HOST:6379/0 "
        "(default: none)",
        remote_url,
        None,
        "URL",
    ),
    Option(
        "disk_cache_size",
        "most bytes of --disk-cache (default: 16GiB)",
        size_in_bytes,
        16 << 30,
        "SIZE",
    ),
    Option(
        "write_policy",
        "write_back: the host, disk and remote caches get what is evicted, and what is left at the end; "
        "write_through: they get pages as they are computed, so that a crash loses little and other servers "
        "find them",
        one_of(*get_args(WritePolicy)),
        "write_back",
        "POLICY",
    ),
    Option(
        "page_size",
        f"tokens in a page of KV cache, a power of two up to {MAX_PAGE_SIZE}",
        page_size,
        16,
        "TOKENS",
    ),
    Option(
        "max_running", "most requests that generate at the same time", whole_number(1, 65536), 256, "REQUESTS"
    ),
    Option(
        "max_waiting",
        "requests that may wait; above that, status 429, except for keys or users below their share (at most "
        "twice this number in all)",
        whole_number(1),
        1024,
        "REQUESTS",
    ),
    Option(
        "request_timeout",
        "most seconds from a request's headers to the end of its answer; then it is cancelled, with status "
        "504 or an error in the stream (default: no limit)",
        seconds,
        None,
        "SECONDS",
    ),
    Option(
        "step_ms",
        "time that a step should take while text is streamed: lower is smoother, higher is more throughput",
        milliseconds,
        60.0,
        "MS",
    ),
    Option(
        "enforce_eager",
        "run kernels one by one, without CUDA graphs or CPU programs; decodes more slowly",
        truth,
        False,
        switch=True,
    ),
    Option(
        "deterministic",
        "the same request gives the same tokens in any batch, cached or not, and after a restart; CPU only, "
        "slower",
        truth,
        False,
        switch=True,
    ),
    Option("no_prefix_cache", "compute every prompt from its start", truth, False, switch=True),
    Option(
        "served_model_name",
        "the model's names in the API; replies show the first (default: MODEL's own); put MODEL "
        "before the option",
        model_names,
        None,
        "NAME",
        repeatable=True,
        several=True,
    ),
    Option(
        "api_key",
        "a key that clients must send; for more, repeat it or put commas between (default: none needed)",
        keys,
        (),
        "KEY",
        repeatable=True,
    ),
    Option(
        "api_key_file",
        "a file of keys, one a line: a key, or a JSON object with its name, hash and limits "
        "(`arbora key NAME` makes one); SIGHUP reads it again (default: none)",
        key_file,
        None,
        "FILE",
    ),
    Option(
        "allowed_host",
        "a name of this server, or of the host of web pages that may use it, for a server without keys; for "
        "more, repeat it; * for all (default: --host and names of this machine)",
        host_names,
        (),
        "NAME",
        repeatable=True,
    ),
    Option(
        "allowed_origin",
        "origin of web pages that may use the server (CORS), such as https://chat.example.com; for more, "
        "repeat it; * for all, on a server with keys (default: no other origin)",
        origins,
        (),
        "ORIGIN",
        repeatable=True,
    ),
    Option("protect_metrics", "/metrics needs a key too", truth, False, switch=True),
    Option(
        "additional_properties",
        "properties beside the declared ones of an object whose schema does not mention others, unless the "
        "request says: none (declared), or any, as JSON Schema has it (schema)",
        one_of(*get_args(AdditionalProperties)),
        "declared",
        "WORD",
    ),
    Option(
        "isolate_keys",
        "clients with different keys share no cached prefixes and no compiled grammars",
        truth,
        False,
        switch=True,
    ),
    Option(
        "whitespace",
        "white space between the tokens of JSON, unless the request says: as the model chooses, with its "
        "first choices for the whole reply (model), none (compact), after commas and colons (spaced), or "
        "indented lines (indented)",
        one_of(*get_args(Whitespace)),
        "model",
        "WORD",
    ),
    Option(
        "unenforced",
        "what to do with schema keywords that can't be enforced, unless the request says: refuse the "
        "request, or allow it and name them in the reply",
        one_of(*get_args(UnenforcedDefault)),
        "refuse",
        "WORD",
    ),
    Option(
        "reasoning_field",
        "the member of a chat's answer that has the model's reasoning: reasoning_content or reasoning",
        one_of(*get_args(ReasoningField)),
        "reasoning_content",
        "NAME",
    ),
    Option(
        "prompt_rules",
        f"rules, separated by commas, that take lines which change with every request out of system prompts: "
        f"{', '.join(RULES)} (default: none)",
        rule_names,
        (),
        "NAMES",
    ),
    Option(
        "data_dir",
        "directory for stored responses, files and batches, which outlive the server; off: store nothing "
        "(default: ~/.local/share/arbora)",
        directory_or_off,
        None,
        "DIRECTORY",
    ),
    Option(
        "data_size",
        "most bytes of --data-dir (default: 4GiB)",
        size_in_bytes,
        4 << 30,
        "SIZE",
    ),
    Option(
        "check_invariants",
        "verify the cache's page counts after every step (slow)",
        truth,
        False,
        switch=True,
    ),
    Option("log_level", ", ".join(LOG_LEVELS), one_of(*LOG_LEVELS), "info", "LEVEL"),
    Option(
        "log_requests",
        "write one line for each request when it ends: tokens, times, outcome, no texts; text, or json for "
        "JSON lines (default: no lines; text if FORMAT is left out)",
        log_format,
        None,
        "FORMAT",
        alone="text",
    ),
    Option(
        "log_texts",
        "add the texts of prompts and replies to the JSON lines of --log-requests json",
        truth,
        False,
        switch=True,
    ),
    Option(
        "otlp_traces_endpoint",
        "URL of an OpenTelemetry collector that gets a trace of each request, such as "
        "http://localhost:4318/v1/traces; needs the packages of OpenTelemetry (default: none)",
        http_url,
        None,
        "URL",
    ),
    Option(
        "api_workers",
        "processes that serve HTTP; more than one for many streams on a machine with many cores",
        whole_number(1, 64),
        1,
        "PROCESSES",
    ),
)
