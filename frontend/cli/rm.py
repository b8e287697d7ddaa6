"""`arbora rm`: deletes a downloaded model."""

from __future__ import annotations

import argparse
import sys

from ...runtime.byte_sizes import in_units
from ...runtime.errors import ConfigError
from ..core.text.close_names import did_you_mean
from ..launch.program_name import program_name
from ..model_files.downloaded import DownloadedModel, delete, find_downloaded, list_downloaded
from ..model_files.model_name import is_path, short_name
from .output import JSON_HELP, is_terminal, print_json

DESCRIPTION = (
    "Delete a downloaded model, by a name that `arbora list` shows. OWNER/NAME without a quantization is\n"
    "all that was downloaded of a repository. Files that were not downloaded are never deleted."
)
EXAMPLE = "arbora rm qwen3:0.6b --yes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name that `arbora list` shows")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed if there is no terminal")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    models = find_downloaded(parsed.name)
    if not models:
        raise ConfigError(f"NAME {parsed.name}: {_explain(parsed.name)}")
    size = sum(model.bytes for model in models)
    if not parsed.yes and not _is_confirmed(models, size, parsed.json):
        return 1
    for model in models:
        try:
            delete(model)
        except OSError as error:
            raise ConfigError(f"{error.filename}: it can't be deleted ({error.strerror}).") from None
    if parsed.json:
        print_json({"deleted": [model.name for model in models], "freed_bytes": size})
    else:
        print(f"deleted {', '.join(model.name for model in models)}: {in_units(size)} are free again")
    return 0


def _explain(name: str) -> str:
    if is_path(name):
        return "this is no downloaded model, so it is not deleted. Delete your own files yourself."
    known = [each for model in list_downloaded() for each in (model.name, short_name(model.name))]
    meant = did_you_mean(name, known)
    return f"no such model was downloaded.{meant} `{program_name()} list` lists those that were."


def _is_confirmed(models: list[DownloadedModel], size: int, json: bool) -> bool:
    """Asks on the terminal. Raises ConfigError if there is none."""
    if json or not is_terminal():
        raise ConfigError("without a terminal to ask on, `arbora rm` needs --yes.")
    names = ", ".join(model.name for model in models)
    print(f"delete {names} ({in_units(size)})? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
