"""`arbora list`: the downloaded models."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from ...runtime.byte_sizes import in_units
from ..launch.program_name import program_name
from ..model_files.downloaded import list_downloaded
from ..model_files.model_name import short_name
from .output import JSON_HELP, print_columns, print_json

DESCRIPTION = (
    "List the downloaded models, in the hub's cache (HF_HUB_CACHE) and in ~/.cache/arbora/models: name,\n"
    "size, the last use that the file system noted, and path. `arbora serve NAME` serves one."
)
EXAMPLE = "arbora list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    models = list_downloaded()
    if parsed.json:
        fields = ("name", "bytes", "last_used", "path", "is_complete")
        found = [{field: getattr(model, field) for field in fields} for model in models]
        print_json({"models": found, "bytes": sum(model.bytes for model in models)})
        return 0
    if not models:
        print(f"no model was downloaded; `{program_name()} models` lists some to begin with")
        return 0
    rows = [
        (
            short_name(model.name) + ("" if model.is_complete else " (in part)"),
            in_units(model.bytes),
            datetime.fromtimestamp(model.last_used).strftime("%Y-%m-%d %H:%M"),
            str(model.path),
        )
        for model in models
    ]
    total = in_units(sum(model.bytes for model in models))
    print_columns(("name", "size", "last used", "path"), rows)
    print(f"{total} in all", file=sys.stderr)
    return 0
