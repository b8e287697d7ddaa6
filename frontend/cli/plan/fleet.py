"""`arbora plan --fleet`: how many replicas answer a workload in time, found by simulation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ....runtime.errors import ConfigError
from ....runtime.option_values import number, read_file, whole_number
from ..output import ReadValue, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...fleet.planner import Trial
    from ...fleet.step_cost import Cost
    from ...fleet.workload import Arrival
    from .estimate import Estimate, Question

MAX_REPLICAS = 1024
MAX_TP = 8
DEFAULT_RATE = 1.0
DEFAULT_REQUESTS = 2000
BAR_WIDTH = 40
BOUND_NOTE = (
    "Steps take the least time that the GPU's bandwidth and rate allow, so real replicas are slower and more "
    "are needed. For a plan from real steps give --steps FILE, which arbora serve --record-steps FILE writes."
)
TP_NOTE = (
    "The time of exchanges between the GPUs of a replica is not counted, and `arbora serve --tp` serves CPUs "
    "only so far."
)


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: the fewest that are enough, or the number that was named; None: even the most are not.
    Costs are of all tokens, and of those of replies alone. `pages` are of each replica."""

    model: str
    device: str
    steps: str
    """where the times of steps come from: "bounds", or the file of measured steps"""
    fit_error: float | None
    """mean relative error of the times that were fitted to measured steps"""
    tp: int
    replicas: int | None
    devices: int | None
    pages: int
    page_size: int
    tokens_per_s: float
    output_tokens_per_s: float
    hit_share: float
    cost_per_million: float | None
    cost_per_million_output: float | None
    trials: tuple[Trial, ...]
    """in ascending order of replicas"""


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
        "GPUs for each replica (default: as many as the model needs)",
    )
    add("--steps", "FILE", read_file, "measured steps, for their times (default: bounds of the GPU)")


FLAGS = (
    "trace",
    "speed",
    "rate",
    "requests",
    "ttft_p99",
    "itl_p99",
    "replicas",
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
    if parsed.replicas is None and parsed.ttft_p99 is None and parsed.itl_p99 is None:
        raise ConfigError(
            "--fleet: it looks for the fewest replicas that are fast enough. Give the longest times with "
            "--ttft-p99 SECONDS, --itl-p99 MS or both, or the number of replicas with --replicas."
        )
    if parsed.gpu is None and parsed.steps is None:
        raise ConfigError("--fleet: times of steps are needed. Name a GPU with --gpu, or give --steps.")
    if parsed.tp is not None and parsed.gpu is None:
        raise ConfigError("--tp: it divides a model among GPUs. Name one with --gpu.")


def plan_fleet(parsed: argparse.Namespace, question: Question) -> FleetPlan:
    """Simulates the workload with the replicas that the options allow. Raises ConfigError."""
    from ....runtime.processes.garbage import leave_out_existing_objects
    from ...fleet.planner import Objectives, Trial, find_fewest
    from ...fleet.replica import Shape
    from ...fleet.simulation import Simulation
    from .estimate import PAGE_SIZE, STEP_MS
    from .roofline import cost_per_million

    if parsed.max_running is not None:
        question = msgspec.structs.replace(question, max_running=parsed.max_running)
    tp, estimate = _choose_ranks(question, parsed.tp, parsed.steps)
    shape = Shape(
        pages=estimate.chosen.pages,
        page_size=PAGE_SIZE,
        slots=question.max_running,
        step_ms=parsed.step_ms or STEP_MS,
        max_model_len=estimate.context,
    )
    arrivals = _read_arrivals(parsed, estimate.context)
    _check_lengths(arrivals, estimate)
    cost, fit_error = _choose_cost(parsed.steps, question, tp)
    objectives = Objectives(
        ttft_p99_s=parsed.ttft_p99, itl_p99_s=None if parsed.itl_p99 is None else parsed.itl_p99 / 1e3
    )

    leave_out_existing_objects()  # a thousand schedulers make collections long

    def simulate(replicas: int) -> Trial:
        figures = Simulation(shape, cost, arrivals, replicas).run()
        return Trial(replicas, figures, objectives.are_met(figures))

    if parsed.replicas is not None:
        trials = [simulate(parsed.replicas)]
    else:
        most = min(MAX_REPLICAS, len(arrivals))
        trials = sorted(find_fewest(simulate, most), key=lambda trial: trial.replicas)
    best = next((trial for trial in trials if trial.is_enough is not False), trials[-1])
    devices, figures = best.replicas * tp, best.figures

    def price(tokens_per_s: float) -> float | None:
        return None if question.price is None else cost_per_million(tokens_per_s, question.price * devices)

    return FleetPlan(
        model=question.name,
        device=question.device if parsed.gpu is None else parsed.gpu,
        steps="bounds" if parsed.steps is None else str(parsed.steps),
        fit_error=fit_error,
        tp=tp,
        replicas=None if best.is_enough is False else best.replicas,
        devices=None if best.is_enough is False else devices,
        pages=shape.pages,
        page_size=PAGE_SIZE,
        tokens_per_s=figures.tokens_per_s,
        output_tokens_per_s=figures.output_tokens_per_s,
        hit_share=figures.hit_share,
        cost_per_million=price(figures.tokens_per_s),
        cost_per_million_output=price(figures.output_tokens_per_s),
        trials=tuple(trials),
    )


def _read_arrivals(parsed: argparse.Namespace, context: int) -> Sequence[Arrival]:
    from ...fleet.workload import make_conversations, read_trace

    if parsed.trace is not None:
        return read_trace(parsed.trace, parsed.speed or 1.0, parsed.requests)
    return make_conversations(parsed.rate or DEFAULT_RATE, parsed.requests or DEFAULT_REQUESTS, context)


def _choose_ranks(question: Question, asked: int | None, steps: Path | None) -> tuple[int, Estimate]:
    """How many GPUs a replica has, and what fits into their memory. Measured steps have been computed by some
    number of GPUs, which only the user knows: 1 if it is not given."""
    from .estimate import estimate

    is_free = asked is None and steps is None and question.gpu is not None
    counts = [1, 2, 4, MAX_TP] if is_free else [asked or 1]
    for count in counts:
        found = estimate(msgspec.structs.replace(question, memory=question.memory * count))
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


def _choose_cost(path: Path | None, question: Question, tp: int) -> tuple[Cost, float | None]:
    """The time of a step, and the error of its fit to measured steps."""
    from ...fleet.step_cost import fit_cost, measure_fit, read_steps
    from .estimate import measure_work
    from .roofline import Rates

    if path is not None:
        steps = read_steps(path)
        cost = fit_cost(steps)
        return cost, measure_fit(cost, steps)
    work, rates = measure_work(question)
    assert rates is not None, "the options name a GPU"
    return partial(work.step_ms, Rates(rates.bandwidth * tp, rates.operations * tp)), None


def report_fleet(found: FleetPlan, parsed: argparse.Namespace) -> Iterator[RenderableType]:
    """The table of the trials, the plot and the layout."""
    first = found.trials[0].figures
    mean_in, mean_out = first.prompt_tokens / first.requests, first.output_tokens / first.requests
    refused = f"; {first.refused:,} longer than the context are refused" if first.refused else ""
    yield (
        f"{found.model}: {first.requests:,} requests, {mean_in:,.0f} tokens in and {mean_out:,.0f} out on "
        f"average{refused}"
    )
    heads = ["replicas", "TTFT p50", "p99", "ITL p99", "hits", "KV", "busy"]
    if found.trials[0].is_enough is not None:
        heads.append("enough")
    title = "Simulated replicas (TTFT in seconds, ITL in milliseconds)"
    yield table(title, heads, map(_trial_row, found.trials))
    most = max(trial.figures.ttft_s.p99 for trial in found.trials)
    yield "TTFT p99 in seconds by replicas"
    for trial in found.trials:
        p99 = trial.figures.ttft_s.p99
        bar = "█" * max(1, round(BAR_WIDTH * p99 / most))
        yield f"{trial.replicas:>5} {bar} {p99:,.2f}{'  (enough)' if trial.is_enough else ''}"
    if found.replicas is None:
        last = found.trials[-1].replicas
        yield "1 replica is not enough." if last == 1 else f"Not even {last:,} replicas are enough."
        if parsed.itl_p99 is not None and 1e3 * found.trials[-1].figures.itl_s.p99 > parsed.itl_p99:
            yield "More replicas hardly shorten the time between two tokens. A lower --step-ms does."
    else:
        device = f"{found.tp} × {found.device}, " if found.tp > 1 else f"{found.device}, "
        if parsed.gpu is None:
            device = "a machine like this one, "
        count = "replica" if found.replicas == 1 else "replicas"
        yield (
            f"Layout: {found.replicas:,} {count}, each on {device}with {found.pages:,} pages of "
            f"{found.page_size} tokens; {found.tokens_per_s:,.0f} tokens/s, {found.output_tokens_per_s:,.0f} "
            f"of them in replies; {100 * found.hit_share:.1f} % of prompt tokens cached"
        )
        if found.cost_per_million is not None and found.cost_per_million_output is not None:
            yield (
                f"1M tokens cost {found.cost_per_million:,.3f}; if only those of replies count, "
                f"{found.cost_per_million_output:,.3f}, with the same number of replicas at all times."
            )
    if found.fit_error is None:
        yield BOUND_NOTE
    else:
        yield (
            f"The times of steps are fitted to {found.steps}, with a mean error of "
            f"{100 * found.fit_error:.0f} %. They hold only for the model, the device and the options with "
            "which they were recorded."
        )
    if found.tp > 1:
        yield TP_NOTE


def _trial_row(trial: Trial) -> tuple[str, ...]:
    figures = trial.figures
    return (
        f"{trial.replicas:,}",
        f"{figures.ttft_s.p50:,.3f}",
        f"{figures.ttft_s.p99:,.3f}",
        f"{1e3 * figures.itl_s.p99:,.1f}",
        *(f"{100 * share:.1f} %" for share in (figures.hit_share, figures.kv_in_use, figures.busy)),
        *([] if trial.is_enough is None else ["yes" if trial.is_enough else "no"]),
    )
