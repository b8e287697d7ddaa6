"""`arbora plan --fleet`: how many replicas answer a workload in time, found by simulation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from ....runtime.errors import ConfigError
from ....runtime.option_values import number, read_file, whole_number
from ..output import ReadValue

if TYPE_CHECKING:
    from ...fleet.planner import Objectives, Trial
    from ...fleet.step_cost import Cost
    from ...fleet.workload import Arrival
    from .estimate import Estimate, PlannedModel, Question
    from .recorded_steps import RecordedSteps

MAX_REPLICAS = 1024
MAX_TP = 8
DEFAULT_RATE = 1.0
DEFAULT_REQUESTS = 2000
REPLICAS_OF_PROCESS = 32
"""the fewest replicas for which a further process is started to simulate them"""
DEFAULT_LINK_GBPS = 10.0
GBIT_BYTES = 1e9 / 8
Roles = Literal["both", "any"] | tuple[int, int]
"""`both`: each replica prefills and decodes. `any`: the layout with the fewest replicas. Two numbers: the
replicas that only prefill, and those that only decode."""


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: the fewest that are enough, or the number that was named; None: even the most are not.
    `prefill_replicas` of them only prefill, and then the others only decode. Costs are of all tokens, and of
    those of replies alone. `pages` are of each replica."""

    model: str
    device: str
    steps: str
    """where the times of steps come from: "bounds", or the file of measured steps"""
    steps_device: str | None
    """the device on which steps were measured"""
    fit_error: float | None
    """mean relative error of the times that were fitted to measured steps"""
    tp: int
    replicas: int | None
    prefill_replicas: int | None
    devices: int | None
    pages: int
    page_size: int
    tokens_per_s: float
    output_tokens_per_s: float
    hit_share: float
    cost_per_million: float | None
    cost_per_million_output: float | None
    trials: tuple[Trial, ...]
    """in ascending order of replicas, first those of replicas that do both"""
    link_gbps: float | None
    """gigabits a second at which pages travel; None: replicas do both"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def add(flag: str, metavar: str, read: Callable[[str], object], help: str) -> None:
        group.add_argument(flag, action=ReadValue, read=read, metavar=metavar, help=help)

    group = parser.add_argument_group("fleet", "How many replicas answer a workload in time, by simulation.")
    group.add_argument("--fleet", action="store_true", help="plan replicas behind the router")
    add("--trace", "FILE", read_file, "requests in Mooncake's format (default: generated conversations)")
    add("--speed", "FACTOR", number(1e-3, 1e6), "times as fast as in the trace (default: 1)")
    rate = f"requests a second, if conversations are generated (default: {DEFAULT_RATE:g})"
    add("--rate", "RATE", number(1e-3, 1e6), rate)
    requests = f"requests to simulate (default: the whole trace, or {DEFAULT_REQUESTS:,} generated ones)"
    add("--requests", "COUNT", whole_number(1), requests)
    add("--ttft-p99", "SECONDS", number(1e-3, 1e6), "longest 99th percentile of the time to first token")
    add("--itl-p99", "MS", number(1e-3, 1e6), "longest 99th percentile of the time between two tokens")
    add("--replicas", "COUNT", whole_number(1), "simulate this number, in place of a search")
    add(
        "--roles",
        "ROLES",
        read_roles,
        "both: each replica prefills and decodes (default); P:D: P replicas only prefill and D only decode; "
        "any: what needs the fewest replicas",
    )
    link = f"gigabits a second at which pages travel between replicas (default: {DEFAULT_LINK_GBPS:g})"
    add("--link-gbps", "GBPS", number(1e-3, 1e5), link)
    add("--max-running", "COUNT", whole_number(1, 65536), "requests that a replica computes at a time")
    add(
        "--step-ms",
        "MS",
        number(1, 60_000, "milliseconds between 1 and 60000"),
        "time of its steps, as of arbora serve",
    )
    add(
        "--tp",
        "COUNT",
        whole_number(1, MAX_TP),
        "GPUs for each replica (default: as many as the model needs, or as were recorded)",
    )
    add("--steps", "FILE", read_file, "measured steps, for their times (default: bounds of the GPU)")


def read_roles(text: str) -> Roles:
    if text == "both":
        return "both"
    if text == "any":
        return "any"
    counts = text.split(":")
    if len(counts) == 2 and all(count.isdecimal() and 1 <= int(count) <= MAX_REPLICAS for count in counts):
        return int(counts[0]), int(counts[1])
    raise ValueError(
        "expected both, any, or the numbers of replicas that only prefill and only decode, such as 1:2."
    )


FLAGS = (
    "trace",
    "speed",
    "rate",
    "requests",
    "ttft_p99",
    "itl_p99",
    "replicas",
    "roles",
    "link_gbps",
    "max_running",
    "step_ms",
    "tp",
    "steps",
)


def check_flags(parsed: argparse.Namespace) -> None:
    """Raises ConfigError for options that can't be used together."""
    given = [name for name in FLAGS if getattr(parsed, name) is not None]
    if not parsed.fleet:
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')}: it needs --fleet.")
        return
    if parsed.trace is not None and parsed.rate is not None:
        raise ConfigError("--rate: a trace has its own times. Leave out --rate, or give --speed.")
    if parsed.trace is None and parsed.speed is not None:
        raise ConfigError("--speed: it needs --trace. Generated conversations come as --rate says.")
    has_counts = parsed.replicas is not None or isinstance(parsed.roles, tuple)
    if not has_counts and parsed.ttft_p99 is None and parsed.itl_p99 is None:
        number = "--roles P:D" if parsed.roles == "any" else "--replicas"
        raise ConfigError(
            "--fleet: it looks for the fewest replicas that are fast enough. Give the longest times with "
            f"--ttft-p99 SECONDS, --itl-p99 MS or both, or the number of replicas with {number}."
        )
    if parsed.replicas is not None and parsed.roles not in (None, "both"):
        raise ConfigError(
            "--replicas: with --roles P:D their sum is the number of replicas, and --roles any looks for it. "
            "Leave out one of the two."
        )
    if parsed.link_gbps is not None and parsed.roles in (None, "both"):
        raise ConfigError(
            "--link-gbps: pages travel only if some replicas prefill for others. Give --roles P:D or any."
        )
    if parsed.gpu is None and parsed.steps is None:
        raise ConfigError("--fleet: times of steps are needed. Name a GPU with --gpu, or give --steps.")
    if parsed.tp is not None and parsed.gpu is None:
        raise ConfigError("--tp: it divides a model among GPUs. Name one with --gpu.")


def plan_fleet(parsed: argparse.Namespace, question: Question) -> FleetPlan:
    """Simulates the workload with the replicas that the options allow. Raises ConfigError."""
    from ....runtime.processes.garbage import leave_out_existing_objects
    from ....runtime.system_cores import count_usable_cores
    from ...fleet.planner import Objectives, Trial
    from ...fleet.prefill import PrefillServers
    from ...fleet.replica import Shape
    from ...fleet.simulation import Simulation
    from .estimate import PAGE_SIZE, STEP_MS, PlannedModel
    from .recorded_steps import read_recorded_steps
    from .roofline import cost_per_million

    if parsed.max_running is not None:
        question = msgspec.structs.replace(question, max_running=parsed.max_running)
    model = PlannedModel.read(question)
    roles: Roles = parsed.roles or "both"
    if roles != "both":
        _check_pages(model, question)
    recorded = None
    if parsed.steps is not None:
        recorded = read_recorded_steps(parsed.steps, question, model, parsed.tp)
    tp, estimate = _choose_ranks(question, model, parsed.tp if recorded is None else recorded.model.tp)
    shape = Shape(
        pages=estimate.chosen.pages,
        page_size=PAGE_SIZE,
        slots=question.max_running,
        step_ms=parsed.step_ms or STEP_MS,
        max_model_len=estimate.context,
    )
    arrivals = _read_arrivals(parsed, estimate.context)
    _check_lengths(arrivals, estimate)
    cost, fit_error = _choose_cost(recorded, question, model, tp)
    objectives = Objectives(
        ttft_p99_s=parsed.ttft_p99, itl_p99_s=None if parsed.itl_p99 is None else parsed.itl_p99 / 1e3
    )
    link_gbps = parsed.link_gbps or DEFAULT_LINK_GBPS

    cores = count_usable_cores()
    leave_out_existing_objects()  # a thousand schedulers make collections long

    def simulate(prefill: int, others: int) -> Trial:
        servers = PrefillServers(prefill, estimate.page_bytes / (link_gbps * GBIT_BYTES)) if prefill else None
        processes = 1 if prefill else max(1, min(cores, others // REPLICAS_OF_PROCESS))
        figures = Simulation(shape, cost, arrivals, others, prefill=servers, processes=processes).run()
        return Trial(prefill + others, figures, objectives.are_met(figures), prefill)

    trials = _run_trials(simulate, roles, parsed.replicas, objectives, min(MAX_REPLICAS, len(arrivals)))
    enough = [trial for trial in trials if trial.is_enough is not False]
    most = max(trials, key=lambda trial: trial.replicas)
    best = min(enough, key=lambda trial: (trial.replicas, trial.prefill), default=most)
    # On a CPU the ranks of a replica are processes of one machine.
    devices, figures = best.replicas * (tp if question.device == "cuda" else 1), best.figures

    def price(tokens_per_s: float) -> float | None:
        return None if question.price is None else cost_per_million(tokens_per_s, question.price * devices)

    return FleetPlan(
        model=question.name,
        device=question.device if parsed.gpu is None else parsed.gpu,
        steps="bounds" if parsed.steps is None else str(parsed.steps),
        steps_device=None if recorded is None else recorded.model.device,
        fit_error=fit_error,
        tp=tp,
        replicas=best.replicas if enough else None,
        prefill_replicas=best.prefill if enough else None,
        devices=devices if enough else None,
        pages=shape.pages,
        page_size=PAGE_SIZE,
        tokens_per_s=figures.tokens_per_s,
        output_tokens_per_s=figures.output_tokens_per_s,
        hit_share=figures.hit_share,
        cost_per_million=price(figures.tokens_per_s),
        cost_per_million_output=price(figures.output_tokens_per_s),
        trials=tuple(trials),
        link_gbps=None if roles == "both" else link_gbps,
    )


def _run_trials(
    simulate: Callable[[int, int], Trial],
    roles: Roles,
    replicas: int | None,
    objectives: Objectives,
    most: int,
) -> list[Trial]:
    """simulate: tries a number of replicas that only prefill, and one of the others. most: replicas"""
    from ...fleet.planner import find_fewest, find_fewest_apart

    if isinstance(roles, tuple):
        return [simulate(*roles)]
    if replicas is not None:
        return [simulate(0, replicas)]
    trials = sorted(find_fewest(partial(simulate, 0), most), key=lambda trial: trial.replicas)
    if roles == "any":
        fewest = min((trial.replicas for trial in trials if trial.is_enough), default=most + 1)
        apart = find_fewest_apart(simulate, objectives, fewest - 1)
        trials += sorted(apart, key=lambda trial: (trial.replicas, trial.prefill))
    return trials


def _check_pages(model: PlannedModel, question: Question) -> None:
    """Raises ConfigError if the model's pages do not travel between replicas."""
    if any(window is not None for window in model.config.cache_spec.windows):
        raise ConfigError(
            f"--roles: {question.name} has layers with windows, and `arbora serve --prefill-from` takes only "
            "pages of layers that see all tokens. Leave it out."
        )


def _read_arrivals(parsed: argparse.Namespace, context: int) -> Sequence[Arrival]:
    from ...fleet.workload import make_conversations, read_trace

    if parsed.trace is not None:
        return read_trace(parsed.trace, parsed.speed or 1.0, parsed.requests)
    return make_conversations(parsed.rate or DEFAULT_RATE, parsed.requests or DEFAULT_REQUESTS, context)


def _choose_ranks(question: Question, model: PlannedModel, given: int | None) -> tuple[int, Estimate]:
    """How many ranks a replica has, and what fits into their memory.

    given: None: as many GPUs as the model needs
    """
    from .estimate import estimate

    counts = [given] if given is not None else [1, 2, 4, MAX_TP] if question.gpu is not None else [1]
    for count in counts:
        memory = question.memory * (count if question.device == "cuda" else 1)
        found = estimate(msgspec.structs.replace(question, memory=memory), model)
        if found.chosen.requests:
            return count, found
    raise ConfigError(
        f"--fleet: a request of {found.context:,} tokens does not fit into a replica's memory, with --tp "
        f"{counts[-1]}. Lower --context, choose a smaller format with --quantize, or raise --tp."
    )


def _check_lengths(arrivals: Sequence[Arrival], estimate: Estimate) -> None:
    """Raises ConfigError if no request fits into the context. Longer ones are counted as refused."""
    if all(arrival.length + arrival.output > estimate.context for arrival in arrivals):
        raise ConfigError(
            f"--context: no request of the workload fits into {estimate.context:,} tokens. Raise it, or "
            "choose a model with a longer context."
        )


def _choose_cost(
    recorded: RecordedSteps | None, question: Question, model: PlannedModel, tp: int
) -> tuple[Cost, float | None]:
    """The time of a step, and the error of its fit to measured steps."""
    from ...fleet.step_cost import fit_cost, measure_fit
    from .roofline import Rates

    if recorded is not None:
        cost = fit_cost(recorded.steps)
        return cost, measure_fit(cost, recorded.steps)
    assert question.gpu is not None, "the options name a GPU"
    rates = model.find_rates(question.gpu)
    all_rates = Rates(rates.bandwidth * tp, rates.operations * tp)
    return partial(model.measure_work().step_ms, all_rates), None
