"""Measures the memory of a server's processes: after its start, and after requests with grammars.

    PYTHONSAFEPATH=1 python bench/server_memory.py [MODEL] [--options "--dtype bfloat16"]

Each figure is a proportional set size in MiB: memory that processes share is divided by their number. The
KV cache has a fixed size and gets all its memory at the start, so that it can be subtracted. Weights count as
the bytes of the checkpoint's files: exact for a model that computes in the type of its files. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import arbora
import psutil

sys.path.append(str(Path(__file__).parent / "lib"))
from server_process import exit_on_sigterm, processes_by_role, serve_arbora

MIB = 1 << 20
KV_MIB = 256
SETTLE_S = 10.0
"""seconds between the last request and the measurement"""
KINDS = {"anonymous": "heap", "torch": "torch", "llvmlite": "LLVM", "numpy": "numpy", "scipy": "numpy"}
"""what a mapping is counted as, by a part of its name; other files are `files`"""
BUILTIN = Path(arbora.__file__).parent / "runtime" / "model" / "builtin"


def grammars(number: int) -> list[dict[str, object]]:
    """Request fields: schemas, a regex that takes seconds to compile, and a grammar for llguidance."""
    properties = {f"p{number}_{i}": {"type": "string", "maxLength": 5 + i} for i in range(4)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return [
        {"guided_json": schema},
        {"guided_json": {"type": "array", "items": schema, "maxItems": 3}},
        {"regex": f"(a|b|{number})*a(a|b){{12}}"},
        {"grammar": f'start: "{number}" /[a-z]+/'},
    ]


def send(url: str, fields: dict[str, object]) -> None:
    body = {"prompt": "x", "max_tokens": 2, "model": "measured", **fields}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).read()


def measure(supervisor: int) -> dict[str, Counter[str]]:
    """Bytes by process and kind of memory."""
    found: dict[str, Counter[str]] = {}
    for role, process in processes_by_role(supervisor).items():
        counts: Counter[str] = Counter()
        try:
            for mapping in process.memory_maps(grouped=True):
                counts[kind_of(mapping.path)] += mapping.pss
            found[name_of(role, process)] = counts
        except psutil.Error:
            continue
    return found


def kind_of(path: str) -> str:
    if path.startswith("["):
        return "heap"
    return next((kind for part, kind in KINDS.items() if part in path), "files")


def name_of(role: str, process: psutil.Process) -> str:
    """The role; for a grammar process also the module that it runs and its pid."""
    module = next((part for part in process.cmdline() if "arbora.grammars" in part), "")
    of = module.partition("arbora.grammars.")[2].split()[0] if module else ""
    return f"{of} {process.pid}" if of else role


def print_table(title: str, found: dict[str, Counter[str]], owned: int) -> None:
    """owned: bytes of weights and KV cache"""
    kinds = sorted({kind for counts in found.values() for kind in counts})
    print(f"\n{title}\n  {'process':28}" + "".join(f"{kind:>8}" for kind in [*kinds, "all"]))
    for name, counts in found.items():
        cells = [*(counts[kind] for kind in kinds), counts.total()]
        print(f"  {name:28}" + "".join(f"{cell / MIB:8.1f}" for cell in cells))
    whole = sum(counts.total() for counts in found.values())
    print(
        f"  {len(found)} processes: {whole / MIB:.0f} MiB; beyond weights and KV cache: "
        f"{(whole - owned) / MIB:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a checkpoint's directory (default: the built-in model)")
    parser.add_argument("--options", default="", help="further options of `arbora serve`, in one text")
    given = parser.parse_args()
    exit_on_sigterm()
    files = Path(given.model or BUILTIN).glob("*.safetensors")
    owned = sum(file.stat().st_size for file in files) + KV_MIB * MIB
    arguments = [*([given.model] if given.model else []), *given.options.split()]
    arguments += ["--kv-memory", f"{KV_MIB}MiB", "--served-model-name", "measured"]
    with (
        tempfile.TemporaryDirectory() as directory,
        serve_arbora(Path(directory) / "log", *arguments) as server,
    ):
        print(f"ready in {server.ready_s:.1f} s")
        time.sleep(SETTLE_S)
        print_table("after the start", measure(server.pid), owned)
        with ThreadPoolExecutor(8) as clients:
            for number in range(8):
                list(clients.map(lambda fields: send(server.url, fields), grammars(number)))
        time.sleep(SETTLE_S)
        print_table("after 32 requests with grammars", measure(server.pid), owned)


if __name__ == "__main__":
    main()
