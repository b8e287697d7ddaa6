"""The plan of a fleet as a table, a plot and sentences."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..output import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...fleet.planner import Trial
    from .fleet import FleetPlan

BAR_WIDTH = 40
BOUND_NOTE = (
    "Steps take the least time that the GPU's bandwidth and rate allow, so real replicas are slower and more "
    "are needed. For a plan from real steps give --steps FILE, which arbora serve --record-steps FILE writes."
)
TP_NOTE = (
    "The time of exchanges between the GPUs of a replica is not counted, and `arbora serve --tp` has not "
    "been measured on GPUs."
)


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
    if any(trial.prefill for trial in found.trials):
        yield "P:D are P replicas that only prefill and D that only decode."
    most = max(trial.figures.ttft_s.p99 for trial in found.trials)
    yield "TTFT p99 in seconds by replicas"
    for trial in found.trials:
        p99 = trial.figures.ttft_s.p99
        bar = "█" * max(1, round(BAR_WIDTH * p99 / most))
        yield f"{_name(trial):>7} {bar} {p99:,.2f}{'  (enough)' if trial.is_enough else ''}"
    if found.replicas is None:
        last = max(found.trials, key=lambda trial: trial.replicas)
        is_one = last.replicas == 1
        yield "1 replica is not enough." if is_one else f"Not even {last.replicas:,} replicas are enough."
        if parsed.itl_p99 is not None and 1e3 * last.figures.itl_s.p99 > parsed.itl_p99:
            apart = ", or prefill apart from decode (--roles any)" if found.link_gbps is None else ""
            yield f"More replicas hardly shorten the time between two tokens. A lower --step-ms does{apart}."
    else:
        device = f"{found.tp} × {found.device}, " if found.tp > 1 else f"{found.device}, "
        if parsed.gpu is None:
            device = "a machine like this one, "
        best = next(
            trial
            for trial in found.trials
            if (trial.replicas, trial.prefill) == (found.replicas, found.prefill_replicas)
        )
        yield (
            f"Layout: {_describe(best)}, each on {device}with {found.pages:,} pages of "
            f"{found.page_size} tokens; {found.tokens_per_s:,.0f} tokens/s, {found.output_tokens_per_s:,.0f} "
            f"of them in replies; {100 * found.hit_share:.1f} % of prompt tokens cached"
        )
        yield from _compare_roles(found)
        if found.cost_per_million is not None and found.cost_per_million_output is not None:
            yield (
                f"1M tokens cost {found.cost_per_million:,.3f}; if only those of replies count, "
                f"{found.cost_per_million_output:,.3f}, with the same number of replicas at all times."
            )
    if found.fit_error is None:
        yield BOUND_NOTE
    else:
        yield (
            f"The times of steps are fitted to {found.steps}, measured on {found.steps_device}, with a mean "
            f"error of {100 * found.fit_error:.0f} %."
        )
    if found.link_gbps is not None:
        yield f"Pages travel between replicas at {found.link_gbps:g} Gbit/s (--link-gbps)."
    if found.tp > 1 and found.fit_error is None:
        yield TP_NOTE
    if found.tp > 1 and found.prefill_replicas:
        yield "`arbora serve` does not move pages between replicas with --tp yet."


def _trial_row(trial: Trial) -> tuple[str, ...]:
    figures = trial.figures
    return (
        _name(trial),
        f"{figures.ttft_s.p50:,.3f}",
        f"{figures.ttft_s.p99:,.3f}",
        f"{1e3 * figures.itl_s.p99:,.1f}",
        *(f"{100 * share:.1f} %" for share in (figures.hit_share, figures.kv_in_use, figures.busy)),
        *([] if trial.is_enough is None else ["yes" if trial.is_enough else "no"]),
    )


def _name(trial: Trial) -> str:
    return f"{trial.prefill:,}:{trial.replicas - trial.prefill:,}" if trial.prefill else f"{trial.replicas:,}"


def _describe(trial: Trial) -> str:
    if trial.prefill:
        apart = f"{trial.prefill:,} only for prefill and {trial.replicas - trial.prefill:,} only for decode"
        return f"{trial.replicas:,} replicas, {apart}"
    return "1 replica" if trial.replicas == 1 else f"{trial.replicas:,} replicas"


def _compare_roles(found: FleetPlan) -> Iterator[RenderableType]:
    """How many replicas the other layout needs, if both were tried."""
    others = [trial for trial in found.trials if bool(trial.prefill) != bool(found.prefill_replicas)]
    if not others:
        return
    enough = [trial for trial in others if trial.is_enough]
    if enough:
        fewest = min(enough, key=lambda trial: trial.replicas)
        yield f"If all replicas prefill and decode, {_describe(fewest)} are enough."
    elif found.prefill_replicas:
        yield f"If all replicas prefill and decode, not even {_describe(others[-1])} are enough."
    else:
        yield "Prefill apart from decode needs at least as many replicas."
