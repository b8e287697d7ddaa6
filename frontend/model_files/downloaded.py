"""The downloaded models: those in the hub's cache, and files of packages in Arbora's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...runtime.cache_directory import cache_directory, packed_directory
from ...runtime.option_values import expand_home
from .gguf.quantizations import list_quantizations
from .hub import hub_cache
from .model_name import is_path, read_hub_name, resolve_alias
from .packaged_models import PACKAGED

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo


_PLACE = "models--"
"""the beginning of the name of a repository's directory in the hub's cache"""


class DownloadedModel(NamedTuple):
    name: str
    """a MODEL that `arbora serve` takes"""
    bytes: int
    last_used: float
    """in seconds since 1970: the last access that the file system noted, or the end of the download"""
    path: Path
    """the directory of a model in safetensors, or the first GGUF file"""
    deleted: tuple[Path, ...]
    """the files and directories to delete with it, links before the contents that they name"""
    is_complete: bool = True
    """False: its download was ended, and continues with `arbora pull`"""


def list_downloaded() -> list[DownloadedModel]:
    """All downloaded models, the last used first. Each quantization of a GGUF repository is a model."""
    from huggingface_hub import scan_cache_dir

    found = [
        DownloadedModel(name, file.stat().st_size, _last_use(file), file, (file,))
        for name, model in PACKAGED.items()
        if (file := model.path).is_file()
    ]
    if (cache := hub_cache()).is_dir():
        scanned = {each.repo_path.name: each for each in scan_cache_dir(cache).repos}
        for place in cache.glob(f"{_PLACE}*"):
            found += _list_repository(place, scanned.get(place.name))
    return sorted(found, key=lambda model: (-model.last_used, model.name))


def find_downloaded(name: str) -> list[DownloadedModel]:
    """The downloaded models of a name, or at a path that `list_downloaded` gave. A repository without a tag
    is all that was downloaded of it."""
    models = list_downloaded()
    if is_path(name):
        return [model for model in models if model.path == expand_home(name).absolute()]
    source = resolve_alias(name)
    hub = read_hub_name(source)
    wanted = str(hub or source).lower()
    return [
        model
        for model in models
        if model.name.lower() == wanted
        or (hub is not None and hub.tag is None and model.name.lower().startswith(f"{wanted}:"))
    ]


def delete(model: DownloadedModel) -> None:
    """Deletes the model's files, and the copies of its packed weights in the cache. Servers that have loaded
    them go on. Raises OSError."""
    for copies in _find_packed(model):
        shutil.rmtree(copies, ignore_errors=True)
    for path in model.deleted:
        if path.is_dir():
            shutil.rmtree(path)
        elif not _is_linked(path):
            path.unlink(missing_ok=True)
    for place in {parent for path in model.deleted for parent in path.parents}:
        if place.name.startswith(_PLACE) and not any((place / "blobs").glob("*")):
            shutil.rmtree(place, ignore_errors=True)


def _find_packed(model: DownloadedModel) -> list[Path]:
    """The directories of the copies of its packed weights, which may be missing."""
    files = model.path.glob("*.safetensors") if model.path.is_dir() else [model.path]
    return [packed_directory(cache_directory("packed"), file) for file in files]


def _is_linked(content: Path) -> bool:
    """Whether a file of the repository still has this content: another quantization may have the same."""
    if content.parent.name != "blobs" or not content.exists():
        return False
    links = (content.parent.parent / "snapshots").rglob("*")
    return any(link.is_file() and link.samefile(content) for link in links)


def _list_repository(place: Path, scanned: CachedRepoInfo | None) -> Iterator[DownloadedModel]:
    """The models in a repository's directory in the hub's cache. scanned: None: it has no complete file"""
    id = place.name.removeprefix(_PLACE).replace("--", "/")
    partial = tuple((place / "blobs").glob("*.incomplete"))
    partial_bytes = sum(path.stat().st_size for path in partial)
    if scanned is None:
        yield DownloadedModel(id, partial_bytes, _last_use(place), place, (place,), is_complete=False)
        return
    revisions = sorted(scanned.revisions, key=lambda each: each.last_modified)
    named = [
        (str(file.file_path.relative_to(revision.snapshot_path)), file)
        for revision in revisions
        for file in revision.files
    ]
    sizes = {name: file.size_on_disk for name, file in named}
    has_checkpoint = any(name.endswith(".safetensors") for name in sizes)
    quantizations = list_quantizations(sizes)
    if has_checkpoint or not quantizations:
        size = scanned.size_on_disk + partial_bytes
        used = max(scanned.last_accessed, scanned.last_modified)
        path = revisions[-1].snapshot_path if revisions else place
        yield DownloadedModel(id, size, used, path, (place,), is_complete=has_checkpoint and not partial)
        return
    for each in quantizations:
        own = [file for name, file in named if name in each.files]
        deleted = (*(file.file_path for file in own), *{file.blob_path for file in own})
        used = max(max(file.blob_last_accessed, file.blob_last_modified) for file in own)
        path = [file.file_path for name, file in named if name == each.files[0]][-1]
        yield DownloadedModel(f"{id}:{each.tag}", each.bytes, used, path, deleted)
    if partial:
        used = max(map(_last_use, partial))
        yield DownloadedModel(id, partial_bytes, used, place, partial, is_complete=False)


def _last_use(path: Path) -> float:
    found = path.stat()
    return max(found.st_atime, found.st_mtime)
