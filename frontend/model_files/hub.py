"""Downloads models from the hub, with errors that say what to do."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...runtime.checkpoint_json import CONFIG_FILE
from ...runtime.errors import ConfigError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
NOT_AN_ID = "this is not a hub id, which has an owner and a name, such as Qwen/Qwen3-0.6B"
BYTES_BAR = "huggingface_hub.snapshot_download"


class Download(NamedTuple):
    """A download. `files` and `bytes` are missing in the cache; `all_files` and `all_bytes` are the
    model's."""

    commit: str
    cache: Path
    files: int
    bytes: int
    all_files: int
    all_bytes: int


def is_hub_id(model: str) -> bool:
    """Whether the text names an owner and a model. The hub's few models without an owner don't count, because
    a directory could have the same name."""
    return HUB_ID.fullmatch(model) is not None


def planned_download(model: str, revision: str | None) -> Download:
    """Asks the hub for the sizes of a model's files. Raises ConfigError."""
    from huggingface_hub import constants, snapshot_download

    with _hub_errors(model, revision), _silent():
        found = snapshot_download(
            model, revision=revision, allow_patterns=FILES, ignore_patterns=["*/*"], dry_run=True
        )
    if not any(each.filename.endswith(".safetensors") for each in found):
        raise ConfigError(no_weights(model))
    new = [each for each in found if each.will_download]
    return Download(
        found[0].commit_hash,
        Path(constants.HF_HUB_CACHE),
        len(new),
        sum(each.file_size or 0 for each in new),
        len(found),
        sum(each.file_size or 0 for each in found),
    )


def download(
    model: str, revision: str | None = None, *, cache: str | None = None, quiet: bool = False
) -> Path:
    """The directory of a model's files, downloaded if needed. Raises ConfigError.

    cache: the directory of downloaded models; None: the hub's cache
    A terminal shows a bar of the downloaded bytes, unless `quiet`.
    """
    from huggingface_hub import snapshot_download

    with _hub_errors(model, revision):
        found = snapshot_download(
            model,
            revision=revision,
            cache_dir=cache,
            allow_patterns=FILES,
            ignore_patterns=["*/*"],
            tqdm_class=_bar_of_bytes(model, quiet),
        )
    return Path(found)


def download_config(model: str, revision: str | None = None) -> Path | None:
    """The directory in the hub's cache that has the model's config.json, downloaded if needed; None if the
    model has none. Raises ConfigError."""
    from huggingface_hub import snapshot_download

    with _hub_errors(model, revision), _silent():
        # hf_hub_download would try a hub that can't be reached six times.
        found = Path(snapshot_download(model, revision=revision, allow_patterns=[CONFIG_FILE]))
    return found if (found / CONFIG_FILE).is_file() else None


def has_weights_in_cache(model: str) -> bool:
    """Whether the hub's cache has some weights of the model, without asking the hub. Raises ConfigError."""
    from huggingface_hub import try_to_load_from_cache

    with _hub_errors(model, None):
        config = try_to_load_from_cache(model, CONFIG_FILE)
    return isinstance(config, str) and any(Path(config).parent.glob("*.safetensors"))


def no_weights(model: str) -> str:
    return (
        f"MODEL {model} has no *.safetensors file on the hub. If it has GGUF files, choose one: "
        f"`hf download {model} --include '*Q4_K_M*' --local-dir .`, then name that file."
    )


@contextmanager
def _hub_errors(model: str, revision: str | None) -> Iterator[None]:
    """Turns the errors of a download into ConfigError."""
    from huggingface_hub.errors import (
        DryRunError,
        GatedRepoError,
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
        reason = "its owner asks you to accept terms first; then log in with `hf auth login`"
        raise ConfigError(f"MODEL {model}: {reason}.") from error
    except RevisionNotFoundError as error:
        reason = "the model has no such branch, tag or commit; leave it out for the newest"
        raise ConfigError(f"--revision {revision}: {reason}.") from error
    except RepositoryNotFoundError as error:
        reason = "there is no such directory, and the hub has no such model that you may read"
        raise ConfigError(f"MODEL {model}: {reason}.") from error
    except (LocalEntryNotFoundError, DryRunError) as error:
        cause = error.__cause__
        if isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError):
            with _hub_errors(model, revision):
                raise cause from None
        copy = "only a part of it" if hasattr(error, "snapshot_path") else "no copy"
        raise ConfigError(
            f"MODEL {model}: there is no such directory, {copy} in the hub's cache, and the hub can't be "
            f"reached ({cause}). Name a directory or a GGUF file, or check the network, HF_ENDPOINT and "
            "HF_HUB_OFFLINE."
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"MODEL {model}: {NOT_AN_ID}.") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error
        raise ConfigError(
            f"MODEL {model}: the disk of the hub's cache is full. Free space there, or set HF_HUB_CACHE to a "
            "directory on another disk; complete files are not downloaded again."
        ) from error
    except Exception as error:  # any error here is a failed download, not a bug
        raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error


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


def _bar_of_bytes(model: str, quiet: bool) -> Any:
    """A class of bars of which only the one for bytes is shown. A file that is no terminal gets none."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            is_shown = settings.get("name") == BYTES_BAR and not quiet
            settings["disable"] = settings.get("disable") if is_shown else True
            settings.pop("bar_format", None)
            settings |= {"desc": model, "dynamic_ncols": True, "unit": "iB", "unit_divisor": 1024}
            super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]

        def set_description(self, *_: Any, **__: Any) -> None:
            """Does nothing, so that the bar keeps the model's name."""

        def set_postfix_str(self, *_: Any, **__: Any) -> None:
            """Does nothing, because the bar shows its own rate."""

    return Bar
