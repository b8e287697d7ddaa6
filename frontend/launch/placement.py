"""Divides the machine among the replicas of a server and the ranks of each: CPU cores and memory, or GPUs."""

from __future__ import annotations

import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from ...runtime.byte_sizes import as_given, in_units
from ...runtime.config import ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.processes.child import CPUS_VARIABLE, RANK_VARIABLE
from ...runtime.processes.sockets import model_directory
from ...runtime.system_cores import Core, find_cores, find_quota
from ...runtime.system_memory import SHARERS_VARIABLE, free_host_memory
from .child_process import WHOLE_MACHINE, Place
from .served_model import HostedModel

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
THREADS_VARIABLE = "OMP_NUM_THREADS"
WEIGHTS_FACTOR = 1.1
"""memory of loaded weights, as a multiple of their files: some are stored in another form"""
MIN_KV_BYTES = 256 << 20
"""KV cache with which a model is worth loading, where it may take more as it needs it"""
PROCESS_BYTES = 512 << 20
"""memory of a replica's processes beside weights and KV cache"""
QUANTIZED_SHARE = {"int8": 0.6, "fp8": 0.6, "int4": 0.4}
"""memory of weights that are quantized when they are loaded, as a multiple of the same in 16 bits"""
SMI_SECONDS = 10.0


def place_replicas(config: ServeConfig) -> tuple[Place, ...]:
    """Raises ConfigError if the machine has too little for all replicas."""
    if config.replicas == config.tp == 1:
        return WHOLE_MACHINE
    return _divide_gpus(config) if config.device == "cuda" else _divide_cpu(config)


def _divide_gpus(config: ServeConfig) -> tuple[Place, ...]:
    """Gives each rank of each replica a GPU. Replicas of one rank share GPUs if --kv-memory says how much of
    them each takes."""
    gpus = find_gpus(os.environ)
    _check_host_cache(config)
    if config.tp > 1:
        return _divide_gpus_among_ranks(config, gpus)
    if config.replicas > len(gpus) and config.kv_memory is None:
        raise ConfigError(
            f"--replicas {config.replicas}: there {_count(len(gpus), 'GPU')}, and each replica takes all of "
            f"one. Lower it to {len(gpus)}, or give --kv-memory, so that several replicas fit on a GPU."
        )
    return tuple(Place({DEVICES_VARIABLE: gpus[number % len(gpus)]}) for number in range(config.replicas))


def _check_host_cache(config: ServeConfig) -> None:
    """Raises ConfigError if the machine has too little memory for the host caches of all processes."""
    count, free = config.replicas * config.tp, free_host_memory()
    if count * config.host_cache > free:
        options = " or ".join(
            flag for flag, given in (("--replicas", config.replicas), ("--tp", config.tp)) if given > 1
        )
        raise ConfigError(
            f"--host-cache {as_given(config.host_cache)}: {count} processes take "
            f"{in_units(count * config.host_cache)}, but only {in_units(free)} are free. Lower it, or "
            f"{options}."
        )


def _divide_gpus_among_ranks(config: ServeConfig, gpus: Sequence[str]) -> tuple[Place, ...]:
    needed = config.replicas * config.tp
    if needed > len(gpus):
        several = f" of {config.replicas} replicas" if config.replicas > 1 else ""
        options = "--tp" if config.replicas == 1 else "--tp or --replicas"
        raise ConfigError(
            f"--tp {config.tp}: the ranks{several} need {needed} GPUs, one each, but there "
            f"{_count(len(gpus), 'GPU')}. Lower {options}, or name more GPUs in {DEVICES_VARIABLE} if it "
            "hides some."
        )
    return tuple(
        Place(
            {DEVICES_VARIABLE: ",".join(own)},
            tuple({RANK_VARIABLE: str(number), DEVICES_VARIABLE: gpu} for number, gpu in enumerate(own)),
        )
        for own in (gpus[begin : begin + config.tp] for begin in range(0, needed, config.tp))
    )


def host_models(config: ServeConfig, directory: Path, replicas: tuple[Place, ...]) -> list[HostedModel]:
    """The models of a server, each with as many replicas."""
    beside = _count_sharers(replicas)
    return [
        HostedModel(
            model_directory(directory, number),
            each.served_model_name,
            replicas,
            each.keep_alive,
            beside * _estimate_memory(each),
        )
        for number, each in enumerate(config.list_models())
    ]


def find_free_memory(config: ServeConfig, replicas: tuple[Place, ...]) -> Callable[[], int] | None:
    """The function that returns the free bytes for further models. None: each model takes a whole GPU."""
    if config.device == "cpu":
        return free_host_memory
    if config.kv_memory is None:
        return None
    gpus = {each.environment.get(DEVICES_VARIABLE, "") for each in replicas}
    visible = {find_gpus(os.environ)[0]}
    return partial(_free_gpu_memory, sorted(gpus - {""} or visible))


def _count_sharers(replicas: tuple[Place, ...]) -> int:
    """How many replicas take the same memory: all on a CPU, those of one GPU otherwise."""
    return max(Counter(each.environment.get(DEVICES_VARIABLE) for each in replicas).values())


def _estimate_memory(config: ServeConfig) -> int:
    """About the bytes that a replica of the model takes of the machine's memory, or of each of its GPUs: its
    weights as stored, and KV cache."""
    files = [path for kind in ("*.safetensors", "*.gguf") for path in config.model.glob(kind)]
    stored = sum(path.stat().st_size for path in files)
    weights = stored if config.quantize is None else QUANTIZED_SHARE[config.quantize] * stored
    of_rank = (config.kv_memory or MIN_KV_BYTES) + PROCESS_BYTES
    if config.device == "cuda":
        return int(WEIGHTS_FACTOR * weights / config.tp) + of_rank
    return int(WEIGHTS_FACTOR * weights) + config.tp * of_rank


def _free_gpu_memory(gpus: Sequence[str]) -> int:
    """The free bytes of the fullest of the GPUs; 0 if the driver does not answer."""
    command = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", ",".join(gpus))
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True)
        return min(int(line) for line in found.stdout.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def find_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that the server may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = environment.get(DEVICES_VARIABLE)
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    numbered = sorted(
        int(file.name[6:]) for file in devices.glob("nvidia[0-9]*") if file.name[6:].isdecimal()
    )
    return [str(index) for index in range(len(numbered))] or ["0"]  # WSL has no such files


def _divide_cpu(config: ServeConfig) -> tuple[Place, ...]:
    models = config.replicas * config.tp
    if config.kv_memory is not None:
        whole, free = models * config.kv_memory, free_host_memory()
        if whole > free:
            counts = (config.replicas, "replicas", "--replicas"), (config.tp, "ranks", "--tp")
            several = " of ".join(f"{count} {name}" for count, name, _ in counts if count > 1)
            options = " or ".join(option for count, _, option in counts if count > 1)
            raise ConfigError(
                f"--kv-memory {as_given(config.kv_memory)}: {several} take {in_units(whole)}, but only "
                f"{in_units(free)} are free. Lower it, or {options}."
            )
    sharing = {} if config.kv_memory is not None else {SHARERS_VARIABLE: str(models)}
    quota = find_quota()
    cpus = None if quota is None else quota.cpus / config.replicas
    places = []
    for part in divide_cores(find_cores(), config.replicas):
        environment = _bind(part, cpus) if config.replicas > 1 else {}
        places.append(Place(sharing | environment, _place_ranks(part, cpus, config.tp)))
    return tuple(places)


def _place_ranks(cores: list[Core], quota: float | None, ranks: int) -> tuple[Mapping[str, str], ...]:
    """The variables of each rank of a replica. All have as many threads, so that they round alike."""
    if ranks == 1:
        return ({},)
    threads = max(1, (len(cores) or os.cpu_count() or 1) // ranks)
    if quota is not None:
        threads = min(threads, max(1, math.ceil(quota / ranks)))
    variables = {} if THREADS_VARIABLE in os.environ else {THREADS_VARIABLE: str(threads)}
    parts = enumerate(divide_cores(cores, ranks))
    return tuple({RANK_VARIABLE: str(number), **_bind(part, None), **variables} for number, part in parts)


def divide_cores(cores: list[Core], parts: int) -> list[list[Core]]:
    """Divides the cores into parts, each on as few memory nodes as possible. If there are fewer cores than
    parts, some parts share a core."""
    if not cores:
        return [[] for _ in range(parts)]
    if len(cores) < parts:
        return [[cores[number % len(cores)]] for number in range(parts)]
    bounds = [number * len(cores) // parts for number in range(parts + 1)]
    return [cores[start:end] for start, end in pairwise(bounds)]


def _bind(cores: list[Core], quota: float | None) -> dict[str, str]:
    """The variables that keep processes on cores, and their threads within a quota of CPUs."""
    variables = {}
    if cores:
        variables[CPUS_VARIABLE] = ",".join(str(cpu) for core in cores for cpu in core.cpus)
    if quota is not None and THREADS_VARIABLE not in os.environ and quota < len(cores):
        variables[THREADS_VARIABLE] = str(max(1, math.ceil(quota)))
    return variables


def _count(number: int, name: str) -> str:
    return f"is {number} {name}" if number == 1 else f"are {number} {name}s"
