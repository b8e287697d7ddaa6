"""Plans a step: its rows, their tokens and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...radix_cache import Lock, PrefixCache, list_runs
from ..messages import (
    NO_STATE,
    TOKEN_BYTES,
    PageCopy,
    RestoredPages,
    RestoredState,
    Row,
    RowGroup,
    StepMasks,
    StepPlan,
)
from .allocation import Allocation
from .budget import StepBudget
from .groups import order_and_group
from .refusals import Limits
from .request import Phase, Request
from .stored_prefix import Fetch

MAX_STEPS_IN_FLIGHT = 2
CHECKPOINT_TOKENS = 512  # minimal distance of checkpoints in a prompt, apart from branches and its end
DECODE_CHECKPOINT_TOKENS = 128  # minimal distance of the two checkpoints that a request in decode keeps
GROWTH_TOKENS = 64  # tokens for which pages are allocated ahead while many are available
MANY_AVAILABLE = 0.25  # share of all pages above which many pages are available


@dataclass(slots=True)
class StepInFlight:
    """A planned step until its result."""

    step: int
    rows: list[tuple[Request, Row]] = field(default_factory=list)
    restored: list[Request] = field(default_factory=list)  # requests whose pages the step restores
    restored_tokens: int = 0  # tokens on the pages that the step restores
    prefill_tokens: int = 0  # tokens of prompts and forced tokens that the step computes
    forced_tokens: int = 0  # the forced ones among `prefill_tokens`
    masks_sent: bool = False

    @property
    def requests(self) -> list[Request]:
        """All requests whose pages the step reads or writes."""
        return list(dict.fromkeys([*self.restored, *(request for request, _ in self.rows)]))

    @property
    def host_masked(self) -> list[Request]:
        return [request for request, row in self.rows if row.host_mask]


class StepPlanner:
    """Turns running requests into numbered step plans."""

    def __init__(self, cache: PrefixCache, banned_tokens: Callable[[Request], bytes], limits: Limits) -> None:
        self._cache = cache
        self._page_size = cache.page_size
        self._many_available = int(MANY_AVAILABLE * cache.num_pages)
        self._banned_tokens = banned_tokens
        self._group_cost = limits.group_cost
        self._max_sampled = limits.max_sampled
        self._pools = limits.pooling is not None
        self._takes_whole = limits.pooling is not None and limits.pooling.takes_whole
        self._state_tokens = limits.state_tokens
        self._checkpoint_tokens = max(CHECKPOINT_TOKENS, limits.state_tokens)
        self._step = 0
        self._tables: dict[int, bytes] = {}  # page tables when rows began to decode, by request arrival
        self._order: list[int] | None = None  # order of the rows of `_groups`, if all of them are in decode
        self._groups: list[RowGroup] = []

    def wants_page(self, request: Request) -> bool:
        """Whether the request is past its prompt and has a token or forced tokens to compute."""
        allocation = request.allocation
        ahead = request.length + allocation.sampling
        return (
            allocation.has_forced or allocation.prefill_end <= allocation.planned < ahead < request.max_length
        )

    def ensure_pages(self, request: Request) -> bool:
        """Allocates pages for the request's next tokens; False if too few are available."""
        allocation = request.allocation
        last = allocation.prefill_end - 1 if allocation.has_forced else allocation.planned
        lock, sampled = allocation.lock, min(last + self._max_sampled, request.max_length)
        end = max(sampled, allocation.prefill_end)
        if end > lock.capacity:
            if self._cache.available() > self._many_available:
                end = max(end, min(allocation.planned + GROWTH_TOKENS, request.max_length))
            if not self._cache.extend(lock, end):
                return False
        next_end = allocation.planned + 1 if allocation.prefilling else sampled
        return self._cache.extend_windows(lock, next_end) >= next_end

    def build(
        self, decoding: list[Request], prefilling: Sequence[Request], streams_text: bool, budget: StepBudget
    ) -> tuple[StepPlan, StepInFlight] | None:
        """Plans the next step: a token for each of `decoding`, and chunks of `prefilling` within `budget`.

        `streams_text`: see `StepBudget`.
        """
        plan, flight = StepPlan(step=self._step + 1, rows=[]), StepInFlight(self._step + 1)
        if not decoding and all(request.allocation.has_forced for request in prefilling):
            streams_text = False  # because each stream waits only for its own forced tokens
        self._add_restores(plan, flight, prefilling, budget.restored_tokens(len(decoding), streams_text))
        restored = flight.restored_tokens + self._state_tokens * len(plan.restored_states)
        most = budget.prefill_tokens(len(decoding), streams_text, restored)
        chunks = self._chunks(prefilling, most, flight)
        if not decoding and not chunks and not flight.restored:
            return None
        self._step += 1
        flight.prefill_tokens = sum(tokens for _, tokens in chunks)
        flight.forced_tokens = sum(tokens for request, tokens in chunks if request.allocation.has_forced)
        rows, plan.groups = self._grouped_rows(decoding, chunks)
        for request, tokens in rows:
            if tokens is None:
                self._add_decode(plan, flight, request)
            else:
                self._add_chunk(plan, flight, request, tokens)
        return plan, flight

    def end_copies(self, flight: StepInFlight) -> None:
        """Ends the page copies of a finished step, so that their sources may be evicted."""
        for request, _ in flight.rows:
            allocation = request.allocation
            if allocation.copy_step == flight.step:
                self._cache.end_copy(allocation.lock)
                allocation.copy_step = None

    def shrink(self, flight: StepInFlight) -> None:
        """Gives back the windowed pages that no later step of the requests in a finished step reads."""
        for request, row in flight.rows:
            if request.held is not None and request.held.lock.windows:
                computed = row.start + len(row.tokens) // TOKEN_BYTES if row.tokens else request.length - 1
                self._cache.shrink(request.held.lock, min(computed, request.held.planned))

    def _chunks(
        self, prefilling: Sequence[Request], budget: int, flight: StepInFlight
    ) -> list[tuple[Request, int]]:
        """Splits the budget (in tokens): each prompt is computed to its end before the next one begins. An
        input that must be whole may exceed the budget, if it is the step's first."""
        chunks: list[tuple[Request, int]] = []
        for request in prefilling:
            allocation = request.allocation
            if allocation.restoring:
                continue
            if allocation.lock.state is not None and request in flight.restored:
                continue  # its checkpoint could else be evicted, and saved before the step restores it
            self._rewind_state(allocation)
            left = allocation.chunk_end - allocation.planned
            tokens = left if self._takes_whole and not chunks else min(budget, left)
            if allocation.lock.state is not None and self._page_size <= tokens < left:
                rest = (allocation.planned + tokens) % self._page_size
                tokens, budget = tokens - rest, budget - rest  # the page store keeps states at ends of pages
            tokens = (
                self._cache.extend_windows(allocation.lock, allocation.planned + tokens) - allocation.planned
            )
            if tokens <= 0 or (self._takes_whole and tokens < left):
                break
            chunks.append((request, tokens))
            budget -= tokens
        return chunks

    def _rewind_state(self, allocation: Allocation) -> None:
        """Goes back to a checkpoint if the live state is ahead, because it can't be taken back."""
        lock = allocation.lock
        if lock.state is None or allocation.state_at <= allocation.planned:
            return
        self._cache.drop_checkpoints(lock, allocation.planned + 1, allocation.state_at + 1)
        allocation.planned, checkpoint = lock.newest_checkpoint(allocation.planned)
        allocation.load_state = NO_STATE if checkpoint is None else checkpoint.place

    def _save_state(self, row: Row, allocation: Allocation, distance: int) -> None:
        """Saves the state after the row if the newest checkpoint is at least `distance` tokens before."""
        position, lock = allocation.planned, allocation.lock
        if lock.state is None:
            return
        # A template may drop the reply's reasoning, so the next turn may begin where this prompt ends.
        ends_prompt = self._cache.stores_states and position == allocation.last_page_end
        is_shared = ends_prompt or position in allocation.stops
        if is_shared or position - lock.newest_checkpoint(position)[0] >= distance:
            place = self._cache.make_checkpoint(lock, position, is_shared)
            row.save_state = NO_STATE if place is None else place

    def _add_restores(
        self, plan: StepPlan, flight: StepInFlight, prefilling: Sequence[Request], tokens: int
    ) -> None:
        """Restores pages of about `tokens` tokens, but at least one page, and after a request's last one its
        state or windowed pages."""
        left = max(1, tokens // self._page_size)
        for request in prefilling:
            pages = min(left, request.allocation.to_restore // self._page_size)
            if pages or (request.allocation.restoring and not request.allocation.to_restore):
                self._add_restore(plan, flight, request, pages)
                left -= pages

    def _add_restore(self, plan: StepPlan, flight: StepInFlight, request: Request, pages: int) -> None:
        allocation, fetch = request.allocation, request.stored.fetch
        assert fetch is not None, "restored pages were fetched"
        fetch.restored = True
        start, end = allocation.planned, allocation.planned + pages * self._page_size
        if pages:
            first = start // self._page_size - fetch.first
            plan.restores.append(RestoredPages(fetch.id, first, _pack(allocation.lock.pages_at(start, end))))
        allocation.planned = end
        allocation.last_step = plan.step
        flight.restored.append(request)
        flight.restored_tokens += pages * self._page_size
        if allocation.restored_place != NO_STATE and not allocation.to_restore:
            plan.restored_states.append(RestoredState(fetch.id, allocation.restored_place))
            allocation.restored_place = NO_STATE
        self._cache.commit(allocation.lock, request.slice(0, allocation.planned))
        if allocation.lock.lacks_windows and not allocation.to_restore:
            plan.restores += _restore_windows(allocation.lock, fetch)
            self._cache.enter_restored(allocation.lock)

    def _add_decode(self, plan: StepPlan, flight: StepInFlight, request: Request) -> None:
        allocation = request.allocation
        samples = self._count_samples(request)
        row = self._add_row(plan, flight, request, samples, samples)
        if allocation.planned % self._page_size == 0:  # the page store keeps only states at ends of pages
            self._save_state(row, allocation, DECODE_CHECKPOINT_TOKENS)
        if row.save_state != NO_STATE:
            newest_but_one, _ = allocation.lock.newest_checkpoint(allocation.planned - 1)
            self._cache.drop_checkpoints(allocation.lock, allocation.prefill_end + 1, newest_but_one)

    def _add_chunk(self, plan: StepPlan, flight: StepInFlight, request: Request, tokens: int) -> None:
        allocation = request.allocation
        start, end = allocation.planned, allocation.planned + tokens
        may_sample = request.phase is Phase.RUNNING and request.output_length < request.sampling.max_tokens
        samples = int(may_sample and end == allocation.prefill_end)
        if samples and allocation.has_forced:
            samples = self._count_samples(request)
            samples += self._cache.extend_windows(allocation.lock, end + samples - 1) - (end + samples - 1)
        row = self._add_row(plan, flight, request, tokens + max(0, samples - 1), samples)
        row.start, row.tokens = start, request.slice(start, end)
        row.pools, row.second = self._pools and end == allocation.prefill_end, request.second
        if request.wants_prompt_logprobs:
            first = max(start + 1, request.sampling.first_scored)
            row.targets = request.slice(first, end + 1)
            row.untargeted = first - 1 - start
        is_last = end in (allocation.last_page_end, allocation.prefill_end)
        self._save_state(row, allocation, 1 if is_last else self._checkpoint_tokens)
        self._cache.commit(allocation.lock, request.slice(0, end))

    def _count_samples(self, request: Request) -> int:
        """The most tokens that a row of the request samples: one, and its drafts."""
        left = request.max_length - request.length - request.allocation.sampling
        return min(self._max_sampled, 1 + request.max_drafts, left)

    def _add_row(
        self, plan: StepPlan, flight: StepInFlight, request: Request, tokens: int, samples: int
    ) -> Row:
        """Adds a row. tokens: upper bound of tokens that it computes. samples: see `Row`."""
        allocation = request.allocation
        if not allocation.is_set_up:
            for_drafts = min(self._max_sampled - 1, request.max_drafts) > 0
            banned = self._banned_tokens(request)
            plan.setups.append(request.setup(allocation.slot, banned, for_drafts=for_drafts))
            allocation.is_set_up = True
        if allocation.last_step == 0:
            self._copy_partial_page(plan, allocation)
        pages, *windows = map(_pack, allocation.take_new_pages())
        row = Row(
            slot=allocation.slot,
            samples=samples,
            new_pages=pages,
            new_window_pages=windows,
            host_mask=samples > 0 and request.constraint is not None and request.constraint.host_masked,
            load_state=allocation.load_state,
        )
        allocation.load_state = NO_STATE
        allocation.planned += tokens
        if allocation.lock.state is not None:
            allocation.state_at = allocation.planned
        allocation.last_step = plan.step
        allocation.sampling += samples
        plan.rows.append(row)
        flight.rows.append((request, row))
        return row

    def _copy_partial_page(self, plan: StepPlan, allocation: Allocation) -> None:
        """Copies the page inside which the match ended to the request's own."""
        for group, (source, target) in enumerate(allocation.lock.list_copies()):
            plan.copies.append(PageCopy(source, target, group))
            allocation.copy_step = plan.step

    def _grouped_rows(
        self, decoding: list[Request], chunks: list[tuple[Request, int]]
    ) -> tuple[list[tuple[Request, int | None]], list[RowGroup]]:
        """The rows in the order of their groups, then the chunks that join no group.

        A row is a request with its chunk's tokens (None: it decodes). Groups depend only on leading pages, so
        they hold while the same requests decode.
        """
        short = sorted((chunk for chunk in chunks if self._may_join(*chunk)), key=lambda chunk: chunk[1])
        long = [chunk for chunk in chunks if not self._may_join(*chunk)]
        if short or self._order is None or [request.arrival for request in decoding] != [*self._tables]:
            self._tables = {
                request.arrival: self._tables.get(request.arrival) or _pack(request.allocation.lock.pages)
                for request in decoding
            }
            tables = [*self._tables.values(), *(self._computed_pages(request) for request, _ in short)]
            several = sum(tokens > 1 for _, tokens in short)
            cost = self._group_cost
            self._order, self._groups = order_and_group(tables, self._page_size, cost, several)
        rows: list[tuple[Request, int | None]] = [*((request, None) for request in decoding), *short]
        ordered = [*(rows[row] for row in self._order), *long]
        if short:
            self._order = None
        return ordered, self._groups

    def _may_join(self, request: Request, tokens: int) -> bool:
        """Whether a chunk may join a group: its partial results cost less than reading all that is cached."""
        cost = self._group_cost
        return tokens <= cost.chunk_tokens and tokens * cost.merged_tokens < request.allocation.planned

    def _computed_pages(self, request: Request) -> bytes:
        """The page table of the whole pages before the request's next tokens."""
        allocation = request.allocation
        whole = allocation.planned // self._page_size * self._page_size
        return _pack(allocation.lock.pages_at(0, whole))


def _restore_windows(lock: Lock, fetch: Fetch) -> Iterator[RestoredPages]:
    """The fetched windowed pages that the request's page tables lack."""
    for table, fetched in zip(lock.windows, fetch.windows, strict=True):
        for start, end in list_runs([fetched.index(index) for index in table.lacking]):
            ids = table.list_ids()
            pages = [ids[index] for index in fetched[start:end]]
            yield RestoredPages(fetch.id, start, _pack(pages), table.group.number)


def step_masks(flight: StepInFlight, words: int) -> StepMasks:
    """The masks of host-masked rows, unless their tokens are discarded; each mask has `words` int32 words."""
    alive = [
        request
        for request in flight.host_masked
        if request.phase is not Phase.ENDED and flight.step > request.allocation.discard_until_step
    ]
    masks = np.empty((len(alive), words), np.int32)
    for request, mask in zip(alive, masks, strict=True):
        assert request.constraint is not None
        request.constraint.fill_mask(mask)
    slots = np.array([request.allocation.slot for request in alive], np.int32)
    return StepMasks(flight.step, slots.tobytes(), masks.tobytes())


def _pack(pages: list[int]) -> bytes:
    return np.array(pages, np.int32).tobytes() if pages else b""
