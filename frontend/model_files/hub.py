"""The models of the hub and of its cache, and their download, with errors that say what to do."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import NamedTuple

from ...runtime.cache_directory import cache_directory, made_at_once, note_use
from ...runtime.checkpoint_json import CONFIG_FILE
from ...runtime.errors import ConfigError
from .file_download import HubFile, download_bar, download_file, download_head, partial_bytes
from .known_models import KNOWN_MODELS

FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken")
NOT_AN_ID = "this is not a hub id, which has an owner and a name, such as Qwen/Qwen3-0.6B"
_MODULE = re.compile(r"[0-9]+_\w+/[^/]+")
"""Matches the files of sentence-transformers' modules, such as 1_Pooling/config.json."""
_DIGEST = re.compile(r"[0-9a-f]*")
"""Digests are names of files in the cache. A mirror of the hub may state none for a small file."""


class Repository(NamedTuple):
    """A revision of a model on the hub."""

    id: str
    commit: str
    files: tuple[HubFile, ...]
    architecture: str | None
    """that of its GGUF files, if the hub says it"""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of all files by name."""
        return {file.name: file.bytes for file in self.files}

    def checkpoint_files(self) -> list[HubFile]:
        """The files of the model in safetensors; empty if it has none."""
        wanted = [file for file in self.files if _is_of_checkpoint(file.name)]
        return wanted if any(_is_weights(file.name) for file in wanted) else []


class Download(NamedTuple):
    """A download of the `wanted` files. The `missing` ones are not in the cache, or only in part."""

    repository: Repository
    revision: str | None
    cache: Path
    wanted: Sequence[HubFile]
    missing: Sequence[HubFile]

    @property
    def place(self) -> Path:
        """The repository's directory in the cache."""
        return find_place(self.repository.id, self.cache)

    @property
    def directory(self) -> Path:
        """The directory of the wanted files after the download."""
        return self.place / "snapshots" / self.repository.commit

    @property
    def bytes_left(self) -> int:
        return sum(file.bytes - partial_bytes(self.place, file) for file in self.missing)


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def find_place(id: str, cache: Path) -> Path:
    """The directory of a repository in the hub's cache; it need not exist. Case does not matter."""
    exact = cache / f"models--{id.replace('/', '--')}"
    if not exact.exists():
        for path in cache.glob("models--*"):
            if path.name.lower() == exact.name.lower():
                return path
    return exact


def cached_id(id: str) -> str:
    """The id as the hub's cache has it, or as it is."""
    place = find_place(id, hub_cache())
    return place.name.removeprefix("models--").replace("--", "/") if place.exists() else id


def find_snapshot(id: str) -> Path | None:
    """The newest revision in the hub's cache, a directory that may lack files; None if there is none."""
    place = find_place(id, hub_cache())
    try:
        found = place / "snapshots" / (place / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return found if found.is_dir() else None


def read_repository(id: str, revision: str | None = None) -> Repository:
    """Asks the hub for the files of a model. Raises ConfigError."""
    from huggingface_hub import HfApi, constants

    with _hub_errors(id, revision), _silent():
        api, timeout = HfApi(endpoint=constants.ENDPOINT), constants.HF_HUB_ETAG_TIMEOUT
        found = api.model_info(id, revision=revision, files_metadata=True, timeout=timeout)
    files = tuple(
        HubFile(file.rfilename, file.size or 0, file.blob_id or "", file.lfs.sha256 if file.lfs else None)
        for file in found.siblings or ()
    )
    for file in files:
        if not _DIGEST.fullmatch(file.blob):
            raise ConfigError(
                f"MODEL {id}: the hub states the digest {file.blob!r} for {file.name}, but a digest has only "
                "the digits 0 to 9 and a to f. HF_ENDPOINT is not to be trusted."
            )
    return Repository(found.id, found.sha or "", files, (found.gguf or {}).get("architecture"))


def plan_download(
    repository: Repository,
    wanted: Sequence[HubFile],
    revision: str | None = None,
    cache: Path | None = None,
) -> Download:
    """Finds the files that the cache lacks. cache: None: the hub's cache"""
    plan = Download(repository, revision, cache or hub_cache(), wanted, ())
    missing = [
        file
        for file in wanted
        if not (plan.directory / file.name).exists() and not (plan.place / "blobs" / file.blob).exists()
    ]
    return plan._replace(missing=missing)


def download_files(plan: Download, *, quiet: bool = False) -> Path:
    """The directory of the wanted files, of which missing ones are downloaded. Raises ConfigError.

    A terminal shows a bar of the downloaded bytes, unless `quiet`.
    """
    from huggingface_hub import snapshot_download

    id, revision = plan.repository.id, plan.revision
    with _hub_errors(id, revision):
        total = sum(file.bytes for file in plan.missing)
        with download_bar(id, total, total - plan.bytes_left, quiet=quiet or not total) as count:
            for file in plan.missing:
                if file.is_resumed:
                    download_file(plan.place, id, plan.repository.commit, file, count)
            # The library downloads the small files, and links all files to their names.
            with _silent():
                found = snapshot_download(
                    id,
                    revision=revision,
                    cache_dir=plan.cache,
                    allow_patterns=[escape(file.name) for file in plan.wanted],
                )
            count(sum(file.bytes for file in plan.missing if not file.is_resumed))
    return Path(found)


def download_heads(repository: Repository, files: Sequence[HubFile]) -> Path:
    """Downloads the first bytes of GGUF files, with their metadata. Returns the first file. The files have
    their full size, but no further content. Raises ConfigError."""
    found = []
    for file in files:
        path = cache_directory("gguf-heads") / file.blob / file.name.rpartition("/")[2]
        found.append(path)
        if not path.exists():
            with _hub_errors(repository.id, None), made_at_once(path.parent, ".part-") as scratch:
                download_head(repository.id, repository.commit, file, scratch / path.name)
        note_use(path.parent)
    first, *rest = found
    for path in rest:  # all files of a split model must be in one directory
        with suppress(FileExistsError):
            (first.parent / path.name).symlink_to(path)
    return first


def download(
    model: str, revision: str | None = None, *, cache: str | None = None, quiet: bool = False
) -> Path:
    """The directory of a model in safetensors, downloaded if needed. Raises ConfigError.

    cache: the directory of downloaded models; None: the hub's cache
    Without an answer of the hub the copy in the cache counts, if it is complete.
    """
    try:
        repository = read_repository(model, revision)
    except ConfigError:
        copy = _complete_copy(model, revision, cache)
        if copy is None:
            raise
        return copy
    wanted = repository.checkpoint_files()
    if not wanted:
        raise ConfigError(no_weights(model))
    directory = None if cache is None else Path(cache)
    return download_files(plan_download(repository, wanted, revision, directory), quiet=quiet)


def download_config(model: str, revision: str | None = None) -> Path | None:
    """The directory in the hub's cache that has the model's config.json, downloaded if needed; None if the
    model has none. Raises ConfigError."""
    from huggingface_hub import snapshot_download

    with _hub_errors(model, revision), _silent():
        # hf_hub_download would try a hub that can't be reached six times.
        found = Path(snapshot_download(model, revision=revision, allow_patterns=[CONFIG_FILE]))
    return found if (found / CONFIG_FILE).is_file() else None


def has_weights_in_cache(model: str) -> bool:
    """Whether the hub's cache has some safetensors of the model, without asking the hub."""
    found = find_snapshot(model)
    return found is not None and (found / CONFIG_FILE).is_file() and any(found.glob("*.safetensors"))


def no_weights(model: str) -> str:
    return f"MODEL {model} has no *.safetensors and no *.gguf file on the hub; other formats are not read."


def _is_of_checkpoint(name: str) -> bool:
    is_in_place = "/" not in name or _MODULE.fullmatch(name) is not None
    return is_in_place and any(fnmatch(name, pattern) for pattern in FILES)


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def _complete_copy(model: str, revision: str | None, cache: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        with _silent():
            found = snapshot_download(
                model,
                revision=revision,
                cache_dir=cache,
                local_files_only=True,
                allow_patterns=list(FILES),
                ignore_patterns=["*/*"],
            )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return Path(found)


@contextmanager
def _hub_errors(model: str, revision: str | None) -> Iterator[None]:
    """Turns the errors of a download into ConfigError."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except ConfigError:
        raise
    except GatedRepoError as error:
        raise ConfigError(
            f"MODEL {model}: its owner asks you to accept a licence first, on {_page(model)}. Then set "
            "HF_TOKEN to your token, or log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        reason = "the model has no such branch, tag or commit; leave it out for the newest"
        raise ConfigError(f"--revision {revision}: {reason}.") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"MODEL {model}: there is no such directory, and the hub has no such model that you may read. "
            "For a private one set HF_TOKEN to your token."
        ) from error
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError):
            with _hub_errors(model, revision):
                raise cause from None
        raise _unreachable(model, cause or error) from error
    except HFValidationError as error:
        raise ConfigError(f"MODEL {model}: {NOT_AN_ID}.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status not in (401, 403):
            raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error
        raise ConfigError(
            f"MODEL {model}: the hub refuses it (status {status}). Accept its licence on {_page(model)}, and "
            "set HF_TOKEN to a token that may read it."
        ) from error
    except OSError as error:
        if _is_unreachable(error):
            raise _unreachable(model, error) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error
        raise ConfigError(
            f"MODEL {model}: the disk of the hub's cache is full. Free space there, or set HF_HUB_CACHE to a "
            "directory on another disk; the download continues where it stopped."
        ) from error
    except Exception as error:  # any error here is a failed download, not a bug
        if _is_unreachable(error):
            raise _unreachable(model, error) from error
        raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error


def _is_unreachable(error: Exception) -> bool:
    """Whether no connection was made or it broke. The library's own HTTP library depends on its version."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"TransportError", "OfflineModeIsEnabled"})


def _unreachable(model: str, cause: BaseException) -> ConfigError:
    copy = "no copy" if find_snapshot(model) is None else "only a part of it"
    known = next((each.name for each in KNOWN_MODELS if each.source.partition(":")[0] == model), None)
    name = f"{model} (known as {known})" if known else model
    return ConfigError(
        f"MODEL {name}: there is no such directory, {copy} in the hub's cache, and the hub can't be reached "
        f"({str(cause).rstrip('.')}). Check the network, HF_ENDPOINT (another hub) and HF_HUB_OFFLINE, or "
        "name a directory or a GGUF file. `arbora serve smollm2` needs only a Python package, and "
        "`arbora serve` alone, with the built-in model, no network."
    )


def _page(model: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{model}"


@contextmanager
def _silent() -> Iterator[None]:
    """Suppresses the library's progress bars, and its warnings, which our own errors replace."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    library = logging.getLogger("huggingface_hub")
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        with disable_progress_bars():
            yield
    finally:
        library.setLevel(level)
