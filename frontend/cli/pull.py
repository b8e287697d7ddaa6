"""`arbora pull`: downloads a model into the hub's cache."""

from __future__ import annotations

import argparse
import shutil
import sys

from ...runtime.byte_sizes import in_units
from ...runtime.errors import ConfigError
from ..launch.program_name import program_name
from ..model_files.hub import Download, download, planned_download
from ..model_files.model_source import check_before_download
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
    plan = planned_download(parsed.model, parsed.revision)
    if plan.files:
        check_before_download(parsed.model, parsed.revision)
    _check_disk(parsed.model, plan)
    if not parsed.json and plan.files:
        print(
            f"{parsed.model}: {in_units(plan.bytes)} to download in {plan.files} files, of "
            f"{in_units(plan.all_bytes)} in {plan.all_files}",
            file=sys.stderr,
        )
    directory = download(parsed.model, parsed.revision, quiet=parsed.json)
    if parsed.json:
        print_json(
            {
                "model": parsed.model,
                "revision": plan.commit,
                "directory": directory,
                "downloaded_bytes": plan.bytes,
                "bytes": plan.all_bytes,
            }
        )
        return 0
    print(f"{parsed.model} is in {directory}")
    served = directory if parsed.revision else parsed.model  # the id alone names the newest revision
    print(f"serve it with `{program_name()} serve {served}`", file=sys.stderr)
    return 0


def _pull_packaged(name: str, model: PackagedModel, json: bool) -> int:
    downloaded = 0 if model.is_cached else model.size
    file = fetch(model, quiet=json)
    if json:
        found = {"model": name, "revision": model.version, "directory": file.parent, "file": file}
        print_json({**found, "downloaded_bytes": downloaded, "bytes": model.size})
        return 0
    print(f"{name} is in {file}")
    print(f"serve it with `{program_name()} serve {name}`", file=sys.stderr)
    return 0


def _check_disk(model: str, plan: Download) -> None:
    """Raises ConfigError if the cache's disk has no space for the files."""
    place = next(path for path in (plan.cache, *plan.cache.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < plan.bytes:
        raise ConfigError(
            f"MODEL {model}: {in_units(plan.bytes, up=True)} are to be downloaded into {plan.cache}, but its "
            f"disk has only {in_units(free)} free. Delete files there (`hf cache prune`), or set "
            "HF_HUB_CACHE to a directory on another disk."
        )
