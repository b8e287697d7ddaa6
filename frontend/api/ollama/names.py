"""Model names. Ollama's have a tag after a colon; `latest` is the tag of a name without one."""

from __future__ import annotations

from ...core.service import Service

_LATEST = ":latest"


def checked_name(service: Service, name: str | None) -> str:
    """The name to show in the reply. Raises a 404 `RequestError` for a model that isn't served."""
    if name and name not in service.config.model_names:
        service.check_model(name.removesuffix(_LATEST))
    return name or service.config.served_model_name


def tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + _LATEST
