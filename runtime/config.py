"""The configuration of a server: built and checked once, then frozen and passed to every process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .api_keys import ApiKey, are_several
from .grammar_spec import AdditionalProperties, Whitespace

BUILTIN_MODEL = Path(__file__).resolve().parent / "model" / "builtin"

Device = Literal["cpu", "cuda"]
WritePolicy = Literal["write_back", "write_through"]
UnenforcedDefault = Literal["refuse", "allow"]
ReasoningField = Literal["reasoning_content", "reasoning"]
QuantizeMethod = Literal["int8", "int4", "fp8"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KvDType = Literal["auto", "int8", "fp8"]
LogFormat = Literal["text", "json"]


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `arbora serve` and `Engine`, with every default resolved."""

    model: Path
    """a directory"""
    served_model_name: str
    """the model's name in replies"""
    more_model_names: tuple[str, ...] = ()
    """names that requests may use as well"""
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    """the path of a Unix socket to listen on instead of `host` and `port`"""
    ssl_certfile: Path | None = None
    """a PEM file with the certificate; the server then speaks HTTPS"""
    ssl_keyfile: Path | None = None
    """a PEM file with the certificate's private key; None: `ssl_certfile` contains it"""
    device: Device = "cpu"
    dtype: DType = "auto"
    quantize: QuantizeMethod | None = None
    """how a checkpoint in 16 or 32 bits is quantized when it is loaded"""
    kv_dtype: KvDType = "auto"
    """dtype of the KV cache; auto: that of the activations"""
    max_model_len: int | None = None
    """tokens of the longest prompt with its reply; None: what the model allows"""
    kv_memory: int | None = None
    """bytes; None: derived from the free memory"""
    page_size: int = 16
    """tokens"""
    pin_memory: int | None = None
    """bytes of the KV cache that clients may pin; None: a quarter"""
    host_cache: int = 0
    """bytes of host memory for pages that are evicted from the KV cache"""
    disk_cache: Path | None = None
    """a directory for evicted pages"""
    disk_cache_size: int = 16 << 30
    """bytes"""
    remote_cache: str | None = None
    """URL of a server for evicted pages"""
    write_policy: WritePolicy = "write_back"
    """write_through: lower tiers get pages as they are computed"""
    max_running: int = 256
    max_waiting: int = 1024
    step_ms: float = 60.0
    """time budget of a step while text is streamed"""
    request_timeout: float | None = None
    """seconds from a request's headers to the end of its answer; None: no limit"""
    prefix_cache: bool = True
    enforce_eager: bool = False
    """no CUDA graphs, and no programs of CPU kernels"""
    deterministic: bool = False
    """a reply's tokens depend only on the request"""
    api_keys: tuple[ApiKey, ...] = ()
    """those at the start; `api_key_file` may change while the server runs"""
    api_key_file: Path | None = None
    keys_of_file: int = 0
    """so many of `api_keys`, the last ones, come from `api_key_file`"""
    allowed_hosts: tuple[str, ...] = ()
    """names of the server in Host and Origin headers, in addition to `host`"""
    allowed_origins: tuple[str, ...] = ()
    """origins of web pages that may use the server across origins; "*": all"""
    protect_metrics: bool = False
    """/metrics needs a key too"""
    additional_properties: AdditionalProperties = "declared"
    """properties beside declared ones, unless the request says otherwise"""
    isolate_keys: bool = False
    """clients with different keys share no prefixes, and each may pin an equal share"""
    reasoning_field: ReasoningField = "reasoning_content"
    """the member of a chat's answer that has the model's reasoning"""
    whitespace: Whitespace = "model"
    """white space between the tokens of JSON, unless the request says otherwise"""
    unenforced: UnenforcedDefault = "refuse"
    """what to do with schema keywords that cannot be enforced, unless the request says otherwise"""
    prompt_rules: tuple[str, ...] = ()
    """names of the rules that take volatile lines out of system prompts"""
    data_dir: Path | None = None
    """a directory for stored responses, files and batches; None: nothing is stored"""
    data_size: int = 4 << 30
    """bytes"""
    check_invariants: bool = False
    log_level: str = "info"
    log_requests: LogFormat | None = None
    """the form of the log line of each HTTP request; None: no such lines"""
    log_texts: bool = False
    """whether these lines have the texts of prompts and replies"""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector for traces"""
    api_workers: int = 1
    """HTTP processes"""

    has_several_keys: bool = False
    """derived: clients are told apart by their keys"""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "has_several_keys", are_several(self.api_keys))

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


def load_config(directory: Path) -> ServeConfig:
    """Reads the configuration that the supervisor saved for its children."""
    return msgspec.json.decode(
        (directory / "config.json").read_bytes(), type=ServeConfig, dec_hook=lambda kind, text: kind(text)
    )
