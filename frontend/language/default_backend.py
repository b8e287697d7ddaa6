"""The backend of a program: the given one, or the default."""

from __future__ import annotations

from typing import cast

from ..engine.engine import Engine
from .backend import Backend
from .engine_backend import EngineBackend

_default: list[object] = []


def set_default_backend(backend: object) -> None:
    """Sets the backend of programs that run without one."""
    backend_of(backend)
    _default[:] = [backend]


def backend_of(backend: object) -> Backend:
    """The given backend, or the default. Raises TypeError for another object, or if there is no default."""
    if backend is None:
        if not _default:
            raise TypeError(
                "no backend is given: pass backend=arbora.Engine() or backend=arbora.connect(URL), or call "
                "arbora.set_default_backend."
            )
        backend = _default[0]
    if isinstance(backend, Engine):
        return EngineBackend(backend)
    if hasattr(backend, "reply") and hasattr(backend, "score"):
        return cast(Backend, backend)
    raise TypeError(f"backend is {backend!r}, but must be an arbora.Engine or what arbora.connect returns.")
