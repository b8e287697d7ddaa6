"""The arguments of `build_app`, as a Serve config has them under `args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from ...runtime.config import OPTIONS, ServeConfig
from ...runtime.errors import ConfigError
from ..core.text.close_names import did_you_mean
from ..engine.options import HTTP_ONLY
from ..launch.options import Setting, build_config
from ..model_files.model_source import served_name

REPLACED = {
    "also_serve": "list the model under `models`",
    "replicas": "give the model's num_replicas or autoscaling",
    "api_workers": "give the ingress's num_replicas",
    "port": "give the port in http_options",
    "ssl_certfile": "have the load balancer before Serve speak HTTPS",
    "served_model_name": "give the model's name",
    "keep_alive": "Serve keeps the replicas running",
    "kv_events": "all replicas would publish at one address",
    "prefill_at": "all replicas would listen at one address",
}
"""Options of `arbora serve` without a meaning here, and what to do in place of each."""
OF_MODEL = ("pin_memory", "prefill_from", "record_steps", "request_timeout", "tp")
"""Options that `Engine` has not, but each model may have. The others of `HTTP_ONLY` concern all models."""
DEFAULTS = {"host": "0.0.0.0", "data_dir": "off", "log_level": "warning"}
"""the defaults that differ from those of `arbora serve`. No process listens on `host`: it decides which names
the `Host` header of a request may have"""
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Delay = Annotated[float, msgspec.Meta(ge=0)]


class Autoscaling(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Keeps a new prompt's wait below `ttft_s`, and a decode step below `itl_s` (None: as long as it takes).
    The delays are in seconds."""

    max_replicas: Count
    min_replicas: Count = 1
    ttft_s: Seconds = 1.0
    itl_s: Seconds | None = None
    upscale_delay_s: Delay = 10.0
    downscale_delay_s: Delay = 300.0
    look_back_period_s: Seconds = 30.0


class ModelArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A model: its name or path (None: the built-in one), and the name that requests give. `options` are
    those of `arbora serve`, and the rest concerns each replica."""

    model: str | None = None
    name: str | None = None
    options: dict[str, Any] = {}
    num_replicas: Count = 1
    autoscaling: Autoscaling | None = None
    num_cpus: Delay = 1
    num_gpus: Delay = 0


class IngressArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    num_replicas: Count = 1
    num_cpus: Delay = 1


class AppArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`options` are for all models."""

    models: Annotated[list[ModelArguments], msgspec.Meta(min_length=1)]
    options: dict[str, Any] = {}
    ingress: IngressArguments = IngressArguments()


class ModelSettings(msgspec.Struct, frozen=True):
    """What each process of a model needs to build its configuration, which has paths of its machine."""

    model: str | None
    name: str
    options: dict[str, Any]
    max_numbers: int
    """how many replicas an ingress process may know at a time, those that are ending too"""

    def build_config(self) -> ServeConfig:
        """The configuration. Downloads the model if needed. Raises ConfigError."""
        settings = {
            name: Setting(f"options.{name}:", value)
            for name, value in {**DEFAULTS, **self.options, "served_model_name": self.name}.items()
            if value is not False
        }
        return build_config(self.model, settings)


def read_arguments(arguments: Mapping[str, Any]) -> AppArguments:
    """Checks the arguments of an application. Raises ConfigError."""
    try:
        read = msgspec.convert(arguments, AppArguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"args: {error}") from None
    _check_options(read.options)
    for each in read.models:
        _check_options(each.options)
        if shared := [name for name in each.options if name in HTTP_ONLY and name not in OF_MODEL]:
            raise ConfigError(
                f"args: options.{shared[0]} of the model {_find_name(each)!r} concerns all models, which "
                "share the HTTP API: give it in the `options` beside `models`."
            )
    names = [_find_name(each) for each in read.models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"args: two models have the name {twice[0]!r}: give one of them another `name`.")
    if read.ingress.num_replicas > 1 and "@" in str(read.options.get("api_key", "")):
        raise ConfigError(
            "args: options.api_key @FILE: the limits of keys hold with one ingress process only. Set "
            "ingress.num_replicas to 1, or leave the file out."
        )
    return read


def list_settings(arguments: AppArguments) -> list[ModelSettings]:
    """The settings of the models, in their order."""
    return [
        ModelSettings(
            each.model,
            _find_name(each),
            {**arguments.options, **each.options},
            2 * (each.autoscaling.max_replicas if each.autoscaling else each.num_replicas) + 2,
        )
        for each in arguments.models
    ]


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that is unknown or has no meaning here, and for a wrong value."""
    known = {option.name: option for option in OPTIONS}
    for name, value in options.items():
        if name in REPLACED:
            raise ConfigError(f"args: options.{name} has no meaning on Ray Serve: {REPLACED[name]}.")
        if name not in known:
            raise ConfigError(
                f"args: there is no option {name!r}.{did_you_mean(name, tuple(known))} "
                "`arbora serve --help` lists them."
            )
        if name == "host" and str(value).startswith("unix:"):
            raise ConfigError(
                f"args: options.host {value}: Serve's proxy listens, and not at a socket file. Give the "
                "names by which clients call the server."
            )
        if known[name].metavar:
            Setting(f"args: options.{name}:", value).read(known[name])


def _find_name(model: ModelArguments) -> str:
    return model.name or served_name(model.model)
