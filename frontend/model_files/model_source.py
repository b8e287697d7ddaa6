"""Finds the directory of a model that the user has named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ...runtime.byte_sizes import in_units
from ...runtime.config import BUILTIN_MODEL
from ...runtime.errors import ConfigError
from ..core.text.close_names import did_you_mean
from .gguf.directory import SHARD, gguf_directory
from .hub import (
    NOT_AN_ID,
    Download,
    download,
    download_config,
    has_weights_in_cache,
    is_hub_id,
    no_weights,
    planned_download,
)
from .packaged_models import PACKAGED, NoPackageError, PackagedModel, fetch, packaged_model

BUILTIN_NAME = "arbora-builtin"
TOKENIZER_FILES = ["tokenizer.json", "*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt"]
_PATH_STARTS = ("/", "./", "../", "~")


def served_name(model: str | None) -> str:
    """The model's name in the API: a hub id, a directory's name, or a file's name without its ending."""
    if model is None:
        return BUILTIN_NAME
    path = Path(model).expanduser()
    if os.path.isfile(path):
        return path.stem
    return path.resolve().name if os.path.isdir(path) else model


def find_model(model: str | None) -> Path:
    """The directory of `model`: a path, a short name of `PACKAGED`, or a hub id (both downloaded if needed).
    None and `BUILTIN_NAME` are the built-in model.

    For a GGUF file the directory is made from the file. Raises ConfigError.
    """
    name = BUILTIN_NAME if model is None else model
    path = Path(name).expanduser()
    if name == BUILTIN_NAME and (model is None or not path.exists()):
        return _checked(BUILTIN_MODEL, "the built-in model")
    if os.path.isdir(path):  # `Path` raises an error for long names
        return _checked(path.resolve(), f"MODEL {name}")
    if path.suffix == ".gguf" and os.path.isfile(path):
        return gguf_directory(path)
    if (packaged := packaged_model(name)) is not None:
        return _from_package(name, packaged)
    if os.path.exists(path):
        raise ConfigError(
            f"MODEL {name} is a file. Name the directory that contains config.json, or a GGUF file."
        )
    if name.startswith(_PATH_STARTS) or path.suffix == ".gguf":
        kind = "file" if path.suffix == ".gguf" else "directory"
        where = "" if path.is_absolute() and path == Path(name) else f" ({path.absolute()})"
        raise ConfigError(
            f"MODEL {name}: there is no such {kind}{where}. Give the path of a GGUF file or of a directory "
            "with config.json, or a name of the hub such as Qwen/Qwen3-0.6B."
        )
    _check_hub_id(name, "there is no such directory, and ")
    return _checked(_from_hub(name), f"MODEL {name}")


def find_config(model: str | None) -> Path:
    """As `find_model`, but downloads only config.json of a hub id."""
    path = None if model is None else Path(model).expanduser()
    if path is not None and os.path.isfile(path / "config.json") and not _has_weights(path):
        return path.resolve()
    if model is None or path is None or not is_on_hub(model):
        return find_model(model)
    found = download_config(model)
    if found is None:
        raise ConfigError(f"MODEL {model}: it has no config.json on the hub.")
    return found


def pull_from_hub(
    model: str,
    revision: str | None = None,
    *,
    quiet: bool = False,
    tell: Callable[[Download], object] = lambda plan: None,
) -> Path:
    """Downloads what the hub's cache lacks of a model. Returns its directory. `tell` gets the sizes first.

    Raises ConfigError, before weights are downloaded if Arbora can't serve the model or the disk is full.
    """
    if model.startswith(_PATH_STARTS) or model.endswith(".gguf"):
        raise ConfigError(f"MODEL {model}: a path needs no download. Use `arbora serve {model}`.")
    _check_hub_id(model)
    plan = planned_download(model, revision)
    if plan.files:
        check_before_download(model, revision)
    _check_disk(model, plan)
    tell(plan)
    return download(model, revision, quiet=quiet)


def check_before_download(model: str, revision: str | None) -> None:
    """Downloads the config.json of a hub id. Raises ConfigError if it describes a model that Arbora can't
    serve, or if the hub has no such model."""
    found = download_config(model, revision)
    if found is not None:
        _check_config(found)


def _check_hub_id(model: str, problem: str = "") -> None:
    if not is_hub_id(model):
        raise ConfigError(f"MODEL {model}: {problem}{NOT_AN_ID}.{did_you_mean(model, PACKAGED)}")


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


def _has_weights(directory: Path) -> bool:
    return any(directory.glob("*.safetensors")) or any(directory.glob("*.gguf"))


def is_on_hub(model: str) -> bool:
    """Whether `model` has the form of a hub id and is no path on this machine."""
    path = Path(model).expanduser()
    is_path = model.startswith(_PATH_STARTS) or model.endswith(".gguf") or os.path.exists(path)
    return not is_path and is_hub_id(model)


def _checked(directory: Path, what: str) -> Path:
    weights = [*directory.glob("*.safetensors")]
    ggufs = sorted(path.name for path in directory.glob("*.gguf"))
    if not (directory / "config.json").is_file():
        instead = f"Name one of its files: {', '.join(ggufs)}." if ggufs else "Name the directory of a model."
        raise ConfigError(f"{what}: {directory} has no config.json. {instead}")
    if not weights and not ggufs:
        _check_config(directory)
        raise ConfigError(
            f"{what}: {directory} has no *.safetensors and no *.gguf file; other formats are not read."
        )
    if not weights and len(ggufs) > 1 and not all(SHARD.fullmatch(name) for name in ggufs):
        raise ConfigError(f"{what}: {directory} has several GGUF files. Name one: {', '.join(ggufs)}.")
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        _check_config(directory, is_gguf=not weights)
        raise ConfigError(
            f"{what}: {directory} has no tokenizer. Copy the model's tokenizer.json (or tokenizer.model, "
            "vocab.json with merges.txt, vocab.txt, *.tiktoken) into it."
        )
    return directory


def _check_config(directory: Path, *, is_gguf: bool = False) -> None:
    """Raises ConfigError if config.json describes a model that Arbora can't serve.

    The model process checks the same, but is only started for a complete model. A user whose directory lacks
    files should learn that the model is unsupported before looking for them or downloading them.
    """
    # Imported only when files are missing: weight_formats imports torch, which would slow down every start.
    from ...runtime.model.model_source import open_architecture
    from ...runtime.model.weight_formats import load_weight_formats

    open_architecture(directory, "auto")
    if not is_gguf:  # config.json does not say how a GGUF file is quantized
        load_weight_formats(directory, frozenset())


def _from_package(name: str, model: PackagedModel) -> Path:
    """The file in the package; without it, the model on the hub."""
    if not model.is_cached and has_weights_in_cache(model.hub_id):
        return _checked(_from_hub(model.hub_id), f"MODEL {name}")
    try:
        return gguf_directory(fetch(model))
    except NoPackageError as error:
        reason = error
    try:
        return _checked(_from_hub(model.hub_id), f"MODEL {name}")
    except ConfigError as error:
        raise ConfigError(f"MODEL {name}: {reason}. {error}") from error


def _from_hub(model: str) -> Path:
    found = download(model) if has_weights_in_cache(model) else pull_from_hub(model)
    if not any(found.glob("*.safetensors")):
        raise ConfigError(no_weights(model))
    return found
