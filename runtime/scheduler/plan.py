"""Forms one step: which rows, which tokens, which pages. It decides nothing about who runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...radix_cache import PrefixCache
from ..messages import PageCopy, RestoredPages, Row, RowGroup, StepMasks, StepPlan
from .admission import pages_for
from .budget import StepBudget
from .groups import order_and_group
from .request import Phase, Request, Residence

GROWTH_TOKENS = 64  # pages are taken ahead for so many tokens while there are plenty
PLENTY = 0.25  # of all pages


@dataclass(slots=True)
class StepInFlight:
    """A planned step until its result: the requests of its rows, and of those that sample, in order.

    `restored` are those that it brings pages back for. `forced_tokens` are those of `prefill_tokens` that
    are no prompt's.
    """

    step: int
    rows: list[Request] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)
    restored: list[Request] = field(default_factory=list)
    restored_tokens: int = 0
    prefill_tokens: int = 0
    forced_tokens: int = 0
    masks_sent: bool = False

    @property
    def requests(self) -> list[Request]:
        """All whose pages it touches."""
        return list(dict.fromkeys([*self.restored, *self.rows]))

    @property
    def host_masked(self) -> list[Request]:
        return [r for r in self.sampled if r.constraint is not None and r.constraint.host_masked]


class StepPlanner:
    """Turns running requests into numbered step plans."""

    def __init__(self, cache: PrefixCache, num_pages: int, banned_tokens: Callable[[Request], bytes]) -> None:
        self._cache = cache
        self._page_size = cache.page_size
        self._plenty = int(PLENTY * num_pages)
        self._banned_tokens = banned_tokens
        self._step = 0
        self._grouped: tuple[list[int], list[int], list[RowGroup]] = ([], [], [])

    def wants_page(self, request: Request) -> bool:
        """It is past its prompt: it has a token to feed, or forced ones, and may sample one more."""
        home = request.residence
        ahead = request.length + home.sampling
        return home.jumping or home.prefill_end <= home.planned < ahead < request.max_length

    def has_page(self, request: Request) -> bool:
        """Takes pages for the next tokens if they lack; False if there are none."""
        home = request.residence
        next_end = max(home.planned + 1, home.prefill_end)
        needed = pages_for(next_end, self._page_size) - len(home.pages)
        if needed <= 0:
            return True
        if self._cache.available() > self._plenty:
            end = min(home.planned + GROWTH_TOKENS, request.max_length)
            needed = max(needed, pages_for(end, self._page_size) - len(home.pages))
        pages = self._cache.allocate(needed, after=home.pages[-1] if home.pages else None)
        if pages is None:
            return False
        home.pages += pages
        return True

    def build(
        self, decoding: list[Request], prefilling: Sequence[Request], budget: StepBudget
    ) -> tuple[StepPlan, StepInFlight] | None:
        """The next step: a token for each of `decoding`, then of `prefilling` what `budget` has room for."""
        plan, flight = StepPlan(step=self._step + 1, rows=[]), StepInFlight(self._step + 1)
        self._add_restores(plan, flight, prefilling, budget.restored_tokens(len(decoding)))
        chunks = self._chunks(prefilling, budget.prefill_tokens(len(decoding), flight.restored_tokens))
        if not decoding and not chunks and not flight.restored:
            return None
        self._step += 1
        flight.prefill_tokens = sum(tokens for _, tokens in chunks)
        flight.forced_tokens = sum(tokens for request, tokens in chunks if request.residence.jumping)
        decoding, plan.groups = self._grouped_rows(decoding)
        for request in decoding:
            self._add_row(plan, flight, request, 1, sample=True)
        for request, tokens in chunks:
            self._add_chunk(plan, flight, request, tokens)
        return plan, flight

    def _chunks(self, prefilling: Sequence[Request], budget: int) -> list[tuple[Request, int]]:
        """First come, first served: a prompt that is begun is brought to its end before the next."""
        chunks = []
        for request in prefilling:
            home = request.residence
            if home.restoring:
                continue
            tokens = min(budget, home.prefill_end - home.planned)
            if tokens <= 0:
                break
            chunks.append((request, tokens))
            budget -= tokens
        return chunks

    def _add_restores(
        self, plan: StepPlan, flight: StepInFlight, prefilling: Sequence[Request], tokens: int
    ) -> None:
        """Pages of about `tokens` tokens in all, but one at least: to copy them takes time as well."""
        room = max(1, tokens // self._page_size)
        for request in prefilling:
            pages = min(room, request.residence.to_restore // self._page_size)
            if pages:
                self._add_restore(plan, flight, request, pages)
                room -= pages

    def _add_restore(self, plan: StepPlan, flight: StepInFlight, request: Request, pages: int) -> None:
        home, fetch = request.residence, request.fetch
        assert fetch is not None, "what is restored was fetched"
        fetch.restored = True
        start = home.planned // self._page_size
        table = home.pages[start : start + pages]
        plan.restores.append(RestoredPages(fetch.id, start - fetch.first, _packed(table)))
        home.planned += pages * self._page_size
        home.last_step = plan.step
        flight.restored.append(request)
        flight.restored_tokens += pages * self._page_size
        self._cache.commit(home.lease, request.slice(0, home.planned), home.pages)

    def _add_chunk(self, plan: StepPlan, flight: StepInFlight, request: Request, tokens: int) -> None:
        home = request.residence
        end = home.planned + tokens
        may_sample = request.phase is Phase.RUNNING and request.output_length < request.sampling.max_tokens
        sample = may_sample and end == home.prefill_end
        row = self._add_row(plan, flight, request, tokens, sample)
        row.tokens = request.slice(row.start, end)
        if request.wants_prompt_logprobs:
            row.targets = request.slice(row.start + 1, end + 1)
        self._cache.commit(home.lease, request.slice(0, end), home.pages)

    def _add_row(
        self, plan: StepPlan, flight: StepInFlight, request: Request, tokens: int, sample: bool
    ) -> Row:
        home = request.residence
        if not home.is_set_up:
            plan.setups.append(request.setup(home.slot, self._banned_tokens(request)))
            home.is_set_up = True
        if home.last_step == 0:
            self._copy_partial_page(plan, home)
        row = Row(
            slot=home.slot,
            start=home.planned,
            sample=sample,
            new_pages=_packed(home.pages[home.sent_pages :]),
            host_mask=sample and request.constraint is not None and request.constraint.host_masked,
        )
        home.sent_pages = len(home.pages)
        home.planned += tokens
        home.last_step = plan.step
        plan.rows.append(row)
        flight.rows.append(request)
        if sample:
            home.sampling += 1
            flight.sampled.append(request)
        return row

    def _copy_partial_page(self, plan: StepPlan, home: Residence) -> None:
        """What the request's own pages start with, if the match ended inside a page."""
        copy = home.lease.copy
        if copy is not None:
            plan.copies.append(PageCopy(copy.source, home.pages[len(home.lease.pages)]))
            home.copy_step = plan.step

    def _grouped_rows(self, decoding: list[Request]) -> tuple[list[Request], list[RowGroup]]:
        """Grouping depends on the leading pages only, so it holds while the same requests decode."""
        arrivals = [request.arrival for request in decoding]
        if arrivals != self._grouped[0]:
            tables = [_packed(request.residence.pages) for request in decoding]
            self._grouped = (arrivals, *order_and_group(tables, self._page_size))
        _, order, groups = self._grouped
        return [decoding[row] for row in order], groups


def step_masks(flight: StepInFlight, words: int) -> StepMasks:
    """Of its rows that the host masks and that have not ended meanwhile; `words` of int32 a mask."""
    alive = [request for request in flight.host_masked if request.phase is not Phase.ENDED]
    masks = np.empty((len(alive), words), np.int32)
    for request, mask in zip(alive, masks, strict=True):
        assert request.constraint is not None
        request.constraint.fill_mask(mask)
    slots = np.array([request.residence.slot for request in alive], np.int32)
    return StepMasks(flight.step, slots.tobytes(), masks.tobytes())


def _packed(pages: list[int]) -> bytes:
    return np.array(pages, np.int32).tobytes() if pages else b""
