"""The options of a server, each defined once: the field's type and default, and beside them its reading and
help text. The configuration is built and checked once, then frozen and passed to every process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec

from .api_keys import ApiKey, are_several
from .event_sockets import EventSockets, read_event_sockets
from .grammar_spec import AdditionalProperties, Whitespace
from .option_values import (
    assignments,
    flags,
    number,
    one_of,
    one_or_off,
    option,
    options_of,
    read_adapters,
    read_certificate,
    read_chat_template,
    read_data_dir,
    read_disk_cache,
    read_drafts,
    read_file_to_append,
    read_host,
    read_hosted,
    read_http_url,
    read_keep_alive,
    read_keys,
    read_local_addresses,
    read_model_names,
    read_origins,
    read_packed_weights,
    read_remote_url,
    read_size,
    read_size_or_zero,
    read_token_count,
    some_of,
    whole_number,
)
from .zmq_address import read_local_address

BUILTIN_MODEL = Path(__file__).resolve().parent / "model" / "builtin"

DEFAULT_LORAS = 8
MAX_LORA_RANK = 256

AUTO_DRAFTS = 12
"""most drafts of a request in a step with `--speculate auto`"""
Device = Literal["cpu", "cuda"]
WritePolicy = Literal["write_back", "write_through"]
UnenforcedDefault = Literal["annotations", "refuse", "allow"]
ReasoningField = Literal["reasoning_content", "reasoning"]
QuantizeMethod = Literal["int8", "int4", "fp8"]
ModelImpl = Literal["auto", "native", "transformers"]
RunnerKind = Literal["auto", "generate", "pooling"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KvDType = Literal["auto", "int8", "fp8"]
LogFormat = Literal["text", "json", "json+texts"]
LogLevel = Literal["debug", "info", "warning", "error"]
PromptRule = Literal["billing-header", "request-id", "date-line", "time-line"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """The options of `arbora serve` and `Engine`, with every default resolved."""

    model: Path
    """a model directory"""
    served_model_name: str
    """the model's name in replies"""
    more_model_names: tuple[str, ...] = option(
        "the model's names in the API, after MODEL; replies show the first (default: MODEL's own)",
        (),
        "NAME",
        read_model_names,
        name="served_model_name",
        is_repeatable=True,
        takes_several=True,
    )
    """further names that requests may use for the model"""
    also_serve: tuple[tuple[str, str], ...] = option(
        "a further model, under its own name or under NAME, that is loaded when a request asks for it; for "
        "more, repeat the option or give several (default: none)",
        (),
        "[NAME=]MODEL",
        read_hosted,
        is_repeatable=True,
        takes_several=True,
    )
    """names and directories of further models"""
    keep_alive: float | None = option(
        "unload a model that has had no request for this time, such as 5m; 0 right after its last request, "
        "-1 never (default: 5m with --also-serve, otherwise never)",
        None,
        "TIME",
        read_keep_alive,
    )
    """in seconds; None: never"""
    any_model_name: bool = option(
        "serve the model under any name, for clients that can't change theirs; replies show that name "
        "(default: a request for an unknown model is refused)",
        False,
    )
    host: str = option(
        "address to listen on: 0.0.0.0 for every network interface, unix:PATH for a Unix socket; names by "
        "which clients call the server behind commas, such as 0.0.0.0,gpu.example.com, or * for any",
        "127.0.0.1",
        "ADDRESS",
        read_host,
    )
    allowed_hosts: tuple[str, ...] = ()
    """names of the server in Host and Origin headers, in addition to `host`"""
    uds: Path | None = None
    """the path of a Unix socket to listen on instead of `host` and `port`"""
    port: int = option("port to listen on; 0 lets the system choose", 8000, "PORT", whole_number(0, 65535))
    ssl_certfile: Path | None = option(
        "serve HTTPS with the certificate and the private key in this PEM file; FILE,KEYFILE if the key has "
        "a separate file (default: HTTP)",
        None,
        "FILE",
        read_certificate,
    )
    ssl_keyfile: Path | None = None
    """a PEM file with the certificate's private key; None: `ssl_certfile` contains it"""
    chat_template: str | None = option(
        "render chats with this Jinja template, a file or its text (default: the model's own template)",
        None,
        "TEMPLATE",
        read_chat_template,
    )
    device: Device = option(
        "cpu or cuda (default: cuda if there is an NVIDIA GPU)", "cpu", "DEVICE", one_of(*get_args(Device))
    )
    dtype: DType = option(
        "auto, float32, bfloat16, float16; auto: as the model says", "auto", "DTYPE", one_of(*get_args(DType))
    )
    model_impl: ModelImpl = option(
        "auto, native, transformers: compute the model by Arbora's own code, or by that of transformers; "
        "auto: by our own if it knows the model",
        "auto",
        "IMPL",
        one_of(*get_args(ModelImpl)),
    )
    runner: RunnerKind = option(
        "auto, generate, pooling: what the model is for; pooling: embeddings, scores and classes; auto: as "
        "the checkpoint says",
        "auto",
        "RUNNER",
        one_of(*get_args(RunnerKind)),
    )
    quantize: QuantizeMethod | None = option(
        "int8, int4 or fp8: quantize a model in 16 or 32 bits when it is loaded, and keep the result in "
        "~/.cache (default: as stored)",
        None,
        "METHOD",
        one_of(*get_args(QuantizeMethod)),
    )
    packed_weights: Path | None = option(
        "directory for copies of models as the kernels read them, so that later starts and other servers of "
        "the model map them instead of packing its weights; off: none; CPU only (default: "
        "~/.cache/arbora/packed)",
        None,
        "DIRECTORY",
        read_packed_weights,
    )
    loras: tuple[tuple[str, Path], ...] = option(
        "an adapter (LoRA, as PEFT saves it) that requests choose by NAME as their model; for more, repeat "
        "the option or give several (default: none)",
        (),
        "NAME=DIRECTORY",
        read_adapters,
        name="lora",
        is_repeatable=True,
        takes_several=True,
    )
    max_loras: int | None = option(
        "adapters that may be loaded at a time, also by POST /v1/load_lora_adapter (default: 8, or as many "
        "as --lora names; without --lora none)",
        None,
        "ADAPTERS",
        whole_number(1, 1000),
    )
    max_lora_rank: int | None = option(
        "largest rank of an adapter, for which memory is kept (default: the largest of --lora, at least 16)",
        None,
        "RANK",
        whole_number(1, MAX_LORA_RANK),
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
        "directory to keep cached prefixes in: they outlive the server; DIRECTORY,SIZE for another limit "
        "than 16GiB (default: none)",
        None,
        "DIRECTORY",
        read_disk_cache,
    )
    disk_cache_size: int = 16 << 30
    """limit of the disk cache in bytes"""
    remote_cache: str | None = option(
        "a Valkey or Redis server that keeps cached prefixes for many servers, such as redis://HOST:6379/0 "
        "(default: none)",
        None,
        "URL",
        read_remote_url,
    )
    prefill_at: str | None = option(
        "address at which other servers of the same model may have this one compute their prompts, such as "
        "tcp://127.0.0.1:7000 (default: none)",
        None,
        "ADDRESS",
        read_local_address,
    )
    prefill_from: tuple[str, ...] = option(
        "servers, by their --prefill-at, that compute this one's prompts, so that its streams go on evenly; "
        "for more repeat it or put commas between (default: none)",
        (),
        "ADDRESS",
        read_local_addresses,
        is_repeatable=True,
    )
    write_policy: WritePolicy = option(
        "when the disk and remote caches get pages: write_back, when they are evicted and at the end; "
        "write_through, as they are computed, so that a crash loses little",
        "write_back",
        "POLICY",
        one_of(*get_args(WritePolicy)),
    )
    page_size: int = 16
    """tokens per page; not an option, because no other size is better"""
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
        number(0.001, 1_000_000, "seconds between 0.001 and 1000000, such as 300"),
    )
    step_ms: float = option(
        "time that a step should take while text is streamed: lower is smoother, higher is more throughput",
        60.0,
        "MS",
        number(1, 60_000, "milliseconds between 1 and 60000"),
    )
    speculate: int | Literal["off", "auto"] | None = option(
        "most tokens of a reply to guess in a step, from what was said before, or auto: as many as save "
        "time; replies stay the same, and those that repeat it come faster (default: auto on a CPU, off on a "
        "GPU)",
        None,
        "off|auto|K",
        read_drafts,
    )
    deterministic: bool = option(
        "the same request gives the same tokens in any batch, cached or not, and after a restart; CPU only, "
        "slower",
        False,
    )
    api_keys: tuple[ApiKey, ...] = option(
        "a key that clients must send, for more repeat it or put commas between; or @FILE: a file of keys "
        "with limits, which SIGHUP reads again (`arbora key NAME` makes one) (default: none needed)",
        (),
        "KEY",
        read_keys,
        name="api_key",
        is_repeatable=True,
    )
    """keys at the start; `api_key_file` may change while the server runs"""
    api_key_file: Path | None = None
    keys_of_file: int = 0
    """how many of `api_keys`, at its end, come from `api_key_file`"""
    allowed_origins: tuple[str, ...] = option(
        "origin of web pages that may use the server (CORS), such as https://chat.example.com; for more, "
        "repeat it; * for all, on a server with keys (default: no other origin)",
        (),
        "ORIGIN",
        read_origins,
        name="allowed_origin",
        is_repeatable=True,
    )
    isolate_keys: bool = option(
        "with commas between: keys (clients with different keys share nothing that is cached), metrics "
        "(/metrics needs a key too) (default: none)",
        False,
        "LIST",
        flags(keys=("isolate_keys", True), metrics=("protect_metrics", True)),
        name="isolate",
    )
    protect_metrics: bool = False
    """whether /metrics needs a key too"""
    additional_properties: AdditionalProperties = option(
        "FIELD=WORD with commas between, for requests that leave these fields out (default: "
        "additional_properties=declared, whitespace=model, unenforced=annotations, "
        "reasoning_field=reasoning_content)",
        "declared",
        "LIST",
        assignments(
            additional_properties=get_args(AdditionalProperties),
            whitespace=get_args(Whitespace),
            unenforced=get_args(UnenforcedDefault),
            reasoning_field=get_args(ReasoningField),
        ),
        name="request_defaults",
    )
    whitespace: Whitespace = "model"
    unenforced: UnenforcedDefault = "annotations"
    reasoning_field: ReasoningField = "reasoning_content"
    prompt_rules: tuple[PromptRule, ...] = option(
        "rules, separated by commas, that take lines which change with every request out of system prompts: "
        "billing-header, request-id, date-line, time-line (default: none)",
        (),
        "NAMES",
        some_of(*get_args(PromptRule)),
    )
    data_dir: Path | None = option(
        "directory for stored responses, files and batches; DIRECTORY,SIZE or ,SIZE for another limit than "
        "4GiB; off: store nothing (default: ~/.local/share/arbora)",
        None,
        "DIRECTORY",
        read_data_dir,
    )
    data_size: int = 4 << 30
    """limit of the stored data in bytes"""
    check_invariants: bool = option(
        "for tests, with commas between: eager (kernels one by one, without graphs or programs), uncached "
        "(compute every prompt from its start), invariants (verify the cache after every step) (default: "
        "none)",
        False,
        "LIST",
        flags(
            eager=("enforce_eager", True),
            uncached=("prefix_cache", False),
            invariants=("check_invariants", True),
        ),
        name="debug",
    )
    enforce_eager: bool = False
    """whether to use neither CUDA graphs nor programs of CPU kernels"""
    prefix_cache: bool = True
    log_level: LogLevel = option("debug, info, warning, error", "info", "LEVEL", one_of(*get_args(LogLevel)))
    log_requests: LogFormat | None = option(
        "the line for each request when it ends, with tokens, times and outcome, no texts: text, json for "
        "JSON lines, json+texts, which adds the texts of prompts and replies, or off",
        "text",
        "FORMAT",
        one_or_off(*get_args(LogFormat)),
        alone="text",
    )
    quiet: bool = option(
        "log only warnings and errors: no line for each request, no stages of the start", False
    )
    record_steps: Path | None = option(
        "file to which each step's work and time are appended, for arbora plan --fleet (default: none)",
        None,
        "FILE",
        read_file_to_append,
    )
    otlp_traces_endpoint: str | None = option(
        "URL of an OpenTelemetry collector that gets a trace of each request, such as "
        "http://localhost:4318/v1/traces; needs the packages of OpenTelemetry (default: none)",
        None,
        "URL",
        read_http_url,
    )
    kv_events: EventSockets | None = option(
        "publish the cache's changes for gateways, as vLLM's KV events, at an address such as "
        "tcp://127.0.0.1:5557; behind commas replay=ADDRESS, topic=TEXT, secret=FILE,clients=DIRECTORY "
        "(default: none)",
        None,
        "ADDRESS",
        read_event_sockets,
    )
    vllm_metrics: bool = option(
        "add gauges under vLLM's names to /metrics, for gateways that read those", False
    )
    api_workers: int = option(
        "processes that serve HTTP; more than one for many streams on a machine with many cores",
        1,
        "PROCESSES",
        whole_number(1, 64),
    )

    replicas: int = option(
        "copies of the model that serve side by side, each with its own cache on its own GPU or part of the "
        "CPU's cores; --kv-memory, --host-cache, --pin-memory and --max-… are for each of them",
        1,
        "REPLICAS",
        whole_number(1, 64),
    )
    tp: int = option(
        "tensor parallel ranks: processes that compute the model together, each with a part of its weights "
        "and of the KV cache, on its own GPU or part of the CPU's cores; --kv-memory is for each of them",
        1,
        "RANKS",
        whole_number(1, 64),
    )

    has_several_keys: bool = False
    """whether clients are told apart by their keys; derived"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_several_keys", are_several(self.api_keys))
        if self.quiet and self.log_level in ("debug", "info"):
            object.__setattr__(self, "log_level", "warning")

    @property
    def max_drafts(self) -> int:
        """The most drafts of a request in a step. Unless asked for, there are none on a GPU."""
        if isinstance(self.speculate, int):
            return self.speculate
        return 0 if self.speculate == "off" else AUTO_DRAFTS

    @property
    def moves_prefill(self) -> bool:
        """Whether pages of prompts come from other servers or go to them."""
        return bool(self.prefill_at or self.prefill_from)

    @property
    def adapter_places(self) -> int:
        """Adapters that can be loaded at a time."""
        if self.max_loras is not None:
            return self.max_loras
        return max(DEFAULT_LORAS, len(self.loras)) if self.loras else 0

    @property
    def log_texts(self) -> bool:
        return self.log_requests == "json+texts"

    @property
    def fixed_keys(self) -> tuple[ApiKey, ...]:
        """The keys from the command line and the environment."""
        return self.api_keys[: len(self.api_keys) - self.keys_of_file]

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names under which requests may ask for the model. Replies show the first."""
        return (self.served_model_name, *self.more_model_names)

    def list_models(self) -> list[ServeConfig]:
        """The configurations of all models of the server, each as if it were the only one."""
        others = [
            replace(self, model=Path(directory), served_model_name=name, more_model_names=())
            for name, directory in self.also_serve
        ]
        return [replace(each, also_serve=()) for each in (self, *others)]

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
