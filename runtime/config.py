"""The one configuration of a server: built and checked once, then frozen and handed to every process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

Device = Literal["cpu", "cuda"]
WritePolicy = Literal["write_back", "write_through"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `arbora serve` and `Engine` were asked for, resolved: no field is left to guess later.

    `model` is a directory. `kv_memory` is in bytes (None: derived from the free memory). `pin_memory` is how
    many bytes of the KV cache clients may pin (None: a quarter). `isolate_keys`: clients with different keys
    share no prefixes, and each may pin an equal part. What the KV cache has no room for goes to `host_cache`
    bytes of host memory, `disk_cache_size` bytes in the directory `disk_cache`, and the server at the URL
    `remote_cache`; with the `write_policy` write_through, what is computed goes there at once. `step_ms` is
    the time budget of a step while streams are open. `enforce_eager`: no CUDA graphs. `deterministic`: a
    request's tokens depend on nothing but the request.
    """

    model: Path
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    device: Device = "cpu"
    dtype: DType = "auto"
    max_model_len: int | None = None
    kv_memory: int | None = None
    page_size: int = 16
    pin_memory: int | None = None
    host_cache: int = 0
    disk_cache: Path | None = None
    disk_cache_size: int = 16 << 30
    remote_cache: str | None = None
    write_policy: WritePolicy = "write_back"
    max_running: int = 256
    max_waiting: int = 1024
    step_ms: float = 300.0
    prefix_cache: bool = True
    enforce_eager: bool = False
    deterministic: bool = False
    api_keys: tuple[str, ...] = ()
    isolate_keys: bool = False
    check_invariants: bool = False
    log_level: str = "info"

    def save(self, directory: Path) -> None:
        (directory / "config.json").write_bytes(msgspec.json.encode(self, enc_hook=str))


def load_config(directory: Path) -> ServeConfig:
    """What the supervisor saved for its children."""
    return msgspec.json.decode(
        (directory / "config.json").read_bytes(), type=ServeConfig, dec_hook=lambda kind, text: kind(text)
    )
