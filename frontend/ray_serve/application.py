"""Builds the Serve application: an ingress with Arbora's HTTP API, and a deployment for each model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.logs import write_log
from ..app.apis import APIS
from ..app.application import create_app, server_routes
from ..app.process import work_in_background
from ..core.service import Service
from ..http.http_service import HttpService
from ..launch.directory import PrivateDirectory
from ..launch.serve import DRAIN_SECONDS
from ..launch.served_model import SAVING_SECONDS
from ..model_files.model_tokenizer import load_tokenizer
from .fleet import Fleet
from .relay import FleetKeys
from .replica import ModelReplica
from .settings import AppArguments, ModelArguments, ModelSettings, list_settings, read_arguments

_PACKAGE = __name__.rpartition(".")[0]
MAX_ONGOING = 100_000
"""open requests that Serve allows a replica: more than any has, because the schedulers limit them by
`max_waiting` and `max_running`"""
HEALTH_SECONDS = 5.0


def build_app(args: Mapping[str, Any]) -> Application:
    """Builds the application for a Serve config's `import_path`, with its `args` (docs/ray.md), or for
    `serve.run`. Raises ConfigError."""
    arguments = read_arguments(args)
    settings, keys = list_settings(arguments), FleetKeys.generate()
    replicas = [
        _deploy_model(given, each).bind(each, keys)
        for given, each in zip(arguments.models, settings, strict=True)
    ]
    return _deploy_ingress(arguments).bind(settings, keys, *replicas)


class Ingress:
    """Serves HTTP for all models: reads prompts, and sends their tokens to the replicas."""

    def __init__(
        self, settings: Sequence[ModelSettings], keys: FleetKeys, *handles: DeploymentHandle[Any]
    ) -> None:
        self._models = list(zip(settings, handles, strict=True))
        self._keys = keys
        self._owned = contextlib.AsyncExitStack()

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Serve. Returns when a replica of each model is up."""
        services: list[Service] = []
        for each, handle in self._models:
            config = await asyncio.to_thread(each.build_config)
            write_log(config.log_level)
            directory = PrivateDirectory.with_config(config)
            self._owned.callback(directory.close)
            tokenizer = await asyncio.to_thread(load_tokenizer, config.model, directory.path, config.runner)
            fleet = Fleet(handle, each, self._keys, directory.path)
            self._owned.push_async_callback(fleet.close)
            work = services[0].work if services else None
            services.append(Service.load(config, fleet.client, tokenizer, work))
        http = HttpService.build(*services)
        self._owned.push_async_callback(http.close)
        routes = server_routes(http, APIS)
        background = asyncio.create_task(work_in_background(http, APIS, routes))
        self._owned.push_async_callback(_cancel, background)
        app = create_app(http, APIS, routes)
        for service in services:
            await service.engine.knows_replica.wait()
        return _serve_http_only(app)

    async def __del__(self) -> None:
        """Called by Serve once no request is open."""
        await self._owned.aclose()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _serve_http_only(app: ASGIApp) -> ASGIApp:
    """An application that refuses WebSockets, and has nothing to do when it starts and ends."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "use HTTP"})
        else:
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})

    return call


def _deploy_ingress(arguments: AppArguments) -> serve.Deployment:
    return serve.deployment(
        name="ingress",
        num_replicas=arguments.ingress.num_replicas,
        ray_actor_options={"num_cpus": arguments.ingress.num_cpus},
        max_ongoing_requests=MAX_ONGOING,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
    )(serve.ingress()(Ingress))


def _deploy_model(given: ModelArguments, settings: ModelSettings) -> serve.Deployment:
    count: dict[str, Any] = {"num_replicas": given.num_replicas}
    if (scaling := given.autoscaling) is not None:
        policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
            policy_function=f"{_PACKAGE}.policy:LatencyPolicy",
            policy_kwargs={"ttft_s": scaling.ttft_s, "itl_s": scaling.itl_s},
        )
        count = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scaling.min_replicas,
                max_replicas=scaling.max_replicas,
                upscale_delay_s=scaling.upscale_delay_s,
                downscale_delay_s=scaling.downscale_delay_s,
                look_back_period_s=scaling.look_back_period_s,
                policy=policy,
            )
        }
    router = RequestRouterConfig(
        request_router_class=f"{_PACKAGE}.request_router:PrefixRequestRouter",  # type: ignore[arg-type]
        request_router_kwargs={"model": settings.name},
    )
    return serve.deployment(
        name=settings.name,
        ray_actor_options={"num_cpus": given.num_cpus, "num_gpus": given.num_gpus},
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS + SAVING_SECONDS,
        request_router_config=router,
        **count,
    )(ModelReplica)
