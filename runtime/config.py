"""The options of a server, each defined once: the field's type and default, and beside them its reading and
help text. The configuration is built and checked once, then frozen and passed to every process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from .api_keys import ApiKey, are_several
from .grammar_spec import AdditionalProperties, Whitespace
from .option_values import (
    one_of,
    one_or_off,
    option,
    options_of,
    read_directory,
    read_directory_or_off,
    read_file,
    read_host,
    read_host_names,
    read_http_url,
    read_keys,
    read_milliseconds,
    read_model_names,
    read_origins,
    read_page_size,
    read_remote_url,
    read_seconds,
    read_size,
    read_size_or_zero,
    read_token_count,
    read_truth,
    some_of,
    whole_number,
)

BUILTIN_MODEL = Path(__file__).resolve().parent / "model" / "builtin"

Device = Literal["cpu", "cuda"]
WritePolicy = Literal["write_back", "write_through"]
UnenforcedDefault = Literal["refuse", "allow"]
ReasoningField = Literal["reasoning_content", "reasoning"]
QuantizeMethod = Literal["int8", "int4", "fp8"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KvDType = Literal["auto", "int8", "fp8"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
PromptRule = Literal["billing-header", "request-id", "date-line", "time-line"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """The options of `arbora serve` and `Engine`, with every default resolved."""

    model: Path
    """a directory"""
    served_model_name: str
    """the model's name in replies"""
    more_model_names: tuple[str, ...] = option(
        "the model's names in the API; replies show the first (default: MODEL's own); put MODEL before the "
        "option",
        (),
        "NAME",
        read_model_names,
        name="served_model_name",
        is_repeatable=True,
        takes_several=True,
    )
    """names that requests may use as well"""
    host: str = option(
        "address to listen on; 0.0.0.0 for every network interface", "127.0.0.1", "ADDRESS", read_host
    )
    port: int = option("port to listen on; 0 lets the system choose", 8000, "PORT", whole_number(0, 65535))
    uds: Path | None = option(
        "path of a Unix socket to listen on instead of a port; the umask decides who may connect (default: "
        "--host and --port)",
        None,
        "PATH",
        read_file,
    )
    ssl_certfile: Path | None = option(
        "serve HTTPS with the certificate in this PEM file, followed by its issuers' (default: HTTP)",
        None,
        "FILE",
        read_file,
    )
    ssl_keyfile: Path | None = option(
        "the private key of that certificate, a PEM file without a password (default: in --ssl-certfile)",
        None,
        "FILE",
        read_file,
    )
    device: Device = option(
        "cpu or cuda (default: cuda if there is an NVIDIA GPU)", "cpu", "DEVICE", one_of(*get_args(Device))
    )
    dtype: DType = option(
        "auto, float32, bfloat16, float16; auto: as the model says", "auto", "DTYPE", one_of(*get_args(DType))
    )
    quantize: QuantizeMethod | None = option(
        "int8, int4 or fp8: quantize a model in 16 or 32 bits when it is loaded, and keep the result in "
        "~/.cache (default: as stored)",
        None,
        "METHOD",
        one_of(*get_args(QuantizeMethod)),
    )
    kv_dtype: KvDType = option(
        "dtype of the KV cache: auto, as --dtype; int8 or fp8: nearly twice the tokens in the same memory, "
        "less exact; fp8 on CUDA only",
        "auto",
        "DTYPE",
        one_of(*get_args(KvDType)),
    )
    max_model_len: int | None = option(
        "longest prompt with its reply, in tokens; 8K is 8192, 8k is 8000 (default: what the model allows)",
        None,
        "TOKENS",
        read_token_count,
    )
    kv_memory: int | None = option(
        "memory for the KV cache, such as 4GiB; a CPU takes it right after the start (default: from the "
        "free memory, at most 4GiB on a CPU, taken as pages are used)",
        None,
        "SIZE",
        read_size,
    )
    pin_memory: int | None = option(
        "how much of the KV cache clients may pin, 0 for nothing (default: a quarter); isolated keys get "
        "equal shares",
        None,
        "SIZE",
        read_size_or_zero,
    )
    host_cache: int = option(
        "host memory for what no longer fits in the KV cache, such as 8GiB (default: none; 1GiB with "
        "--disk-cache or --remote-cache)",
        0,
        "SIZE",
        read_size_or_zero,
    )
    disk_cache: Path | None = option(
        "directory to keep cached prefixes in: they outlive the server (default: none)",
        None,
        "DIRECTORY",
        read_directory,
    )
    remote_cache: str | None = option(
        "a Valkey or Redis server that keeps cached prefixes for many servers, such as redis://HOST:6379/0 "
        "(default: none)",
        None,
        "URL",
        read_remote_url,
    )
    disk_cache_size: int = option("most bytes of --disk-cache (default: 16GiB)", 16 << 30, "SIZE", read_size)
    write_policy: WritePolicy = option(
        "write_back: the host, disk and remote caches get what is evicted, and what is left at the end; "
        "write_through: they get pages as they are computed, so that a crash loses little and other servers "
        "find them",
        "write_back",
        "POLICY",
        one_of(*get_args(WritePolicy)),
    )
    page_size: int = option(
        "tokens in a page of KV cache, a power of two up to 256", 16, "TOKENS", read_page_size
    )
    max_running: int = option(
        "most requests that generate at the same time", 256, "REQUESTS", whole_number(1, 65536)
    )
    max_waiting: int = option(
        "requests that may wait; above that, status 429, except for keys or users below their share (at "
        "most twice this number in all)",
        1024,
        "REQUESTS",
        whole_number(1),
    )
    request_timeout: float | None = option(
        "most seconds from a request's headers to the end of its answer; then it is cancelled, with status "
        "504 or an error in the stream (default: no limit)",
        None,
        "SECONDS",
        read_seconds,
    )
    step_ms: float = option(
        "time that a step should take while text is streamed: lower is smoother, higher is more throughput",
        60.0,
        "MS",
        read_milliseconds,
    )
    enforce_eager: bool = option(
        "run kernels one by one, without CUDA graphs or CPU programs; decodes more slowly", False
    )
    deterministic: bool = option(
        "the same request gives the same tokens in any batch, cached or not, and after a restart; CPU only, "
        "slower",
        False,
    )
    prefix_cache: bool = option(
        "compute every prompt from its start",
        True,
        "",
        lambda text: not read_truth(text),
        name="no_prefix_cache",
    )
    api_keys: tuple[ApiKey, ...] = option(
        "a key that clients must send; for more, repeat it or put commas between (default: none needed)",
        (),
        "KEY",
        read_keys,
        name="api_key",
        is_repeatable=True,
    )
    """those at the start; `api_key_file` may change while the server runs"""
    api_key_file: Path | None = option(
        "a file of keys, one a line: a key, or a JSON object with its name, hash and limits (`arbora key "
        "NAME` makes one); SIGHUP reads it again (default: none)",
        None,
        "FILE",
        read_file,
    )
    keys_of_file: int = 0
    """so many of `api_keys`, the last ones, come from `api_key_file`"""
    allowed_hosts: tuple[str, ...] = option(
        "a name of this server, or of the host of web pages that may use it, for a server without keys; for "
        "more, repeat it; * for all (default: --host and names of this machine)",
        (),
        "NAME",
        read_host_names,
        name="allowed_host",
        is_repeatable=True,
    )
    allowed_origins: tuple[str, ...] = option(
        "origin of web pages that may use the server (CORS), such as https://chat.example.com; for more, "
        "repeat it; * for all, on a server with keys (default: no other origin)",
        (),
        "ORIGIN",
        read_origins,
        name="allowed_origin",
        is_repeatable=True,
    )
    protect_metrics: bool = option("/metrics needs a key too", False)
    additional_properties: AdditionalProperties = option(
        "properties beside the declared ones of an object whose schema does not mention others, unless the "
        "request says: none (declared), or any, as JSON Schema has it (schema)",
        "declared",
        "WORD",
        one_of(*get_args(AdditionalProperties)),
    )
    isolate_keys: bool = option(
        "clients with different keys share no cached prefixes and no compiled grammars", False
    )
    whitespace: Whitespace = option(
        "white space between the tokens of JSON, unless the request says: as the model chooses, with its "
        "first choices for the whole reply (model), none (compact), after commas and colons (spaced), or "
        "indented lines (indented)",
        "model",
        "WORD",
        one_of(*get_args(Whitespace)),
    )
    unenforced: UnenforcedDefault = option(
        "what to do with schema keywords that can't be enforced, unless the request says: refuse the "
        "request, or allow it and name them in the reply",
        "refuse",
        "WORD",
        one_of(*get_args(UnenforcedDefault)),
    )
    reasoning_field: ReasoningField = option(
        "the member of a chat's answer that has the model's reasoning: reasoning_content or reasoning",
        "reasoning_content",
        "NAME",
        one_of(*get_args(ReasoningField)),
    )
    prompt_rules: tuple[PromptRule, ...] = option(
        "rules, separated by commas, that take lines which change with every request out of system prompts: "
        "billing-header, request-id, date-line, time-line (default: none)",
        (),
        "NAMES",
        some_of(*get_args(PromptRule)),
    )
    data_dir: Path | None = option(
        "directory for stored responses, files and batches, which outlive the server; off: store nothing "
        "(default: ~/.local/share/arbora)",
        None,
        "DIRECTORY",
        read_directory_or_off,
    )
    data_size: int = option("most bytes of --data-dir (default: 4GiB)", 4 << 30, "SIZE", read_size)
    check_invariants: bool = option("verify the cache's page counts after every step (slow)", False)
    log_level: LogLevel = option("debug, info, warning, error", "info", "LEVEL", one_of(*get_args(LogLevel)))
    log_requests: LogFormat | None = option(
        "write one line for each request when it ends: tokens, times, outcome, no texts; text, or json for "
        "JSON lines (default: no lines; text if FORMAT is left out)",
        None,
        "FORMAT",
        one_or_off(*get_args(LogFormat)),
        alone="text",
    )
    log_texts: bool = option(
        "add the texts of prompts and replies to the JSON lines of --log-requests json", False
    )
    otlp_traces_endpoint: str | None = option(
        "URL of an OpenTelemetry collector that gets a trace of each request, such as "
        "http://localhost:4318/v1/traces; needs the packages of OpenTelemetry (default: none)",
        None,
        "URL",
        read_http_url,
    )
    api_workers: int = option(
        "processes that serve HTTP; more than one for many streams on a machine with many cores",
        1,
        "PROCESSES",
        whole_number(1, 64),
    )

    has_several_keys: bool = False
    """derived: clients are told apart by their keys"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_several_keys", are_several(self.api_keys))

    @property
    def fixed_keys(self) -> tuple[ApiKey, ...]:
        """The keys of the command line and the environment."""
        return self.api_keys[: len(self.api_keys) - self.keys_of_file]

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names under which requests may ask for the model. Replies show the first."""
        return (self.served_model_name, *self.more_model_names)

    def save(self, directory: Path) -> None:
        path = directory / "config.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self, enc_hook=str))


OPTIONS = options_of(ServeConfig)


def load_config(directory: Path) -> ServeConfig:
    """Reads the configuration that the supervisor saved for its children."""
    return msgspec.json.decode(
        (directory / "config.json").read_bytes(), type=ServeConfig, dec_hook=lambda kind, text: kind(text)
    )
