"""Finds the directory of a model that the user has named."""

from __future__ import annotations

import re
from pathlib import Path

from ..runtime.config import BUILTIN_MODEL
from ..runtime.errors import ConfigError

BUILTIN_NAME = "arbora-builtin"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
TOKENIZER_FILES = ["tokenizer.json", "*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt"]
GGUF_INSTEAD = (
    "GGUF is not supported: use the model's safetensors checkpoint, in 16 bits or quantized as FP8, GPTQ, "
    "AWQ or by compressed-tensors."
)
_PATH_STARTS = ("/", "./", "../", "~")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def served_name(model: str | None) -> str:
    """The model's name in the API: a hub id itself, or a directory's own name."""
    if model is None:
        return BUILTIN_NAME
    return Path(model).resolve().name if Path(model).is_dir() else model


def find_model(model: str | None) -> Path:
    """The directory of `model`: a path, a hub id (downloaded if needed), or None for the built-in model.

    Raises ConfigError.
    """
    if model is None:
        return _checked(BUILTIN_MODEL, "the built-in model")
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path.resolve(), f"MODEL {model}")
    if path.exists():
        instead = GGUF_INSTEAD if path.suffix == ".gguf" else "Name the directory that holds config.json."
        raise ConfigError(f"MODEL {model} is a file. {instead}")
    if model.startswith(_PATH_STARTS):
        raise ConfigError(f"MODEL {model}: there is no such directory ({path.absolute()}).")
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"MODEL {model}: there is no such directory, and it is not a hub id such as Qwen/Qwen3-0.6B."
        )
    return _checked(_from_hub(model), f"MODEL {model}")


def _checked(directory: Path, what: str) -> Path:
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{what}: {directory} has no config.json. Name the directory of a model.")
    if not any(directory.glob("*.safetensors")):
        instead = f" {GGUF_INSTEAD}" if any(directory.glob("*.gguf")) else ""
        raise ConfigError(
            f"{what}: {directory} has no *.safetensors file; other formats are not read.{instead}"
        )
    if not any(any(directory.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise ConfigError(
            f"{what}: {directory} has no tokenizer. Copy the model's tokenizer.json (or tokenizer.model, "
            "vocab.json with merges.txt, vocab.txt, *.tiktoken) into it."
        )
    return directory


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except GatedRepoError as error:
        reason = "its owner asks you to accept terms first; then log in with `hf auth login`"
        raise ConfigError(f"MODEL {model}: {reason}.") from error
    except RepositoryNotFoundError as error:
        reason = "there is no such directory, and the hub has no such model that you may read"
        raise ConfigError(f"MODEL {model}: {reason}.") from error
    except LocalEntryNotFoundError as error:
        reason = "there is no such directory, no copy in the hub's cache, and the hub can't be reached"
        raise ConfigError(f"MODEL {model}: {reason}. Name a directory, or run without MODEL.") from error
    except Exception as error:  # a network failure must not look like a bug of ours
        raise ConfigError(f"MODEL {model}: the hub could not be read: {error}") from error
