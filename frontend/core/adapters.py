"""Loads and unloads adapters while requests run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from ...runtime.errors import RequestError
from ...runtime.messages import Adapter, AdapterChanged, LoadAdapter, QueryRefused, UnloadAdapter
from .service import Service
from .validation import invalid_field

LOAD_SECONDS = 600.0
MAX_NAME = 256  # characters
CONFIG_FILE = "adapter_config.json"


async def load_adapter(service: Service, name: str, path: str, *, replaces: bool) -> Adapter:
    """Loads the adapter in a directory of the server under a name. `replaces`: also if the name belongs to
    another adapter. Raises `RequestError` if it can't be served."""
    _check_shared(service)
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise invalid_field("lora_name", f"must have 1 to {MAX_NAME} printable characters")
    if name in service.config.model_names:
        raise invalid_field("lora_name", f"is {name!r}, which is the model's own name: choose another")
    if not service.config.adapter_places:
        raise RequestError(
            "This server has no places for adapters: start it with --max-loras N.", code="no_adapter_places"
        )
    directory = Path(path).absolute()
    if not await asyncio.to_thread(os.path.isfile, directory / CONFIG_FILE):
        raise RequestError(
            f"lora_path is {str(directory)!r}, where no adapter is: it must be a directory with "
            f"{CONFIG_FILE}.",
            status=404,
            param="lora_path",
            code="adapter_not_found",
        )
    client = service.engine.client
    return await _order(service, lambda query: LoadAdapter(client, query, name, str(directory), replaces))


async def unload_adapter(service: Service, name: str) -> Adapter:
    """Takes an adapter from new requests; those that have arrived still use it. Raises `RequestError`."""
    _check_shared(service)
    return await _order(service, lambda query: UnloadAdapter(service.engine.client, query, name))


def _check_shared(service: Service) -> None:
    if service.config.isolate_keys:
        raise RequestError(
            "With --isolate keys no adapter can be loaded or unloaded, because all keys share the adapters: "
            "name them by --lora.",
            status=403,
            code="adapters_are_shared",
        )


async def _order(service: Service, order: Callable[[int], LoadAdapter | UnloadAdapter]) -> Adapter:
    """Orders the same of all replicas. If one of them can't load an adapter, the others drop it again."""
    engine = service.engine
    engine.check_serving()
    answers = await engine.ask_all(order, LOAD_SECONDS)
    changed = [each for each in answers.values() if isinstance(each, AdapterChanged)]
    refused = next((each for each in answers.values() if isinstance(each, QueryRefused)), None)
    if refused is not None and changed and isinstance(order(0), LoadAdapter):
        name = changed[0].adapter.name
        await engine.ask_all(lambda query: UnloadAdapter(engine.client, query, name), LOAD_SECONDS)
    if refused is not None and not (changed and isinstance(order(0), UnloadAdapter)):
        raise RequestError(refused.message, status=refused.status, param=refused.param, code=refused.code)
    if not changed:
        raise RequestError(
            "The model did not answer in time. GET /v1/models shows whether the adapter is loaded.",
            status=503,
            code="no_answer",
        )
    return changed[0].adapter
