"""Moves requests from waiting to running: one at a time, as soon as a step has room for it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

from ...radix_cache import PrefixCache
from .admission import take_residence
from .fairness import Bounds, Fairness
from .grammar_desk import GrammarDesk
from .queue import WaitingQueue
from .request import LentTurn, Phase, Request, Turn
from .shared_prefix import awaits_prefix
from .stored_pages import StoredPages

STEPS_IN_FLIGHT = 2


class Starter:
    """Owns the waiting requests and the free slots.

    A request starts when the next step would compute some of its prompt, and not before: who waits holds no
    pages, may still be overtaken, and may find more in the tree. Prompts that run are computed one after
    the other, in the order of their turns: by priority, then those whose tenants are within the
    bound of fairness; where priorities order a tenant's own requests alone, fairness comes first. One that
    others were put before `Bounds.overtaken` times is put back no more.
    """

    def __init__(
        self,
        cache: PrefixCache,
        stored: StoredPages,
        slots: int,
        grammars: GrammarDesk,
        fairness: Fairness,
        bounds: Bounds,
    ) -> None:
        self.waiting = WaitingQueue(fairness, bounds)
        self._cache = cache
        self._stored = stored
        self._grammars = grammars
        self._fairness = fairness
        self._bounds = bounds
        self._free_slots = deque(range(slots))

    def starts(self, running: Mapping[int, Request], tokens: int, restored_tokens: int) -> Iterator[Request]:
        """Starts as many requests as a step that computes and restores so many prompt tokens has room for.

        `running` are the requests by slot; each that is yielded must be entered there before the next.
        """
        if not self.waiting or not self._free_slots:
            return

        busy = [request for request in running.values() if not request.only_decodes]

        def has_room(turn: Turn) -> bool:
            return self._tokens_before(turn, busy) < tokens

        without_grammar = 0
        for request in self.waiting.candidates(self._matched, has_room):
            if self._awaits(request, busy):
                self._lend_turn(request)
                continue
            if self._stored.awaits(request, busy=bool(running)):
                continue
            if request.fetch is not None and self._restored_before(request, busy) >= restored_tokens:
                continue
            if not self._grammars.load(request.constraint):
                without_grammar += 1
                if request.overtaken >= self._bounds.overtaken or without_grammar >= self._bounds.look_ahead:
                    return
                continue
            if not self._start(request, len(running), busy):
                self._grammars.unload(request.constraint)
                return
            busy.append(request)
            yield request
            if not self._free_slots:
                return

    def fetch_ahead(self) -> None:
        """Has stored pages of those who wait brought nearer, in the order of their turns."""

        def order(request: Request) -> tuple[Turn, int]:
            return self.waiting.turn(request.priority, request.tenant), request.arrival

        self._stored.fetch_ahead(order)

    def enter(self, request: Request, running: Iterable[Request], first: bool = False) -> None:
        """It waits from now on; `first` before all others of its tenant."""
        owed: Counter[str] = Counter()
        for other in running:
            if other.computes_prompt and self._fairness.compete(request, other):
                owed[other.tenant] += other.owed
        self._fairness.contend(request, owed)
        add = self.waiting.add_first if first else self.waiting.add
        add(request)
        self._stored.enter(request)

    def in_turn(self, prompts: Iterable[Request]) -> list[Request]:
        """Running requests in the order in which their prompts are computed."""
        return sorted(prompts, key=self._running_turn)

    def leave(self, request: Request) -> None:
        """It runs no more: its slot is free, and what was not computed is not paid for."""
        self._fairness.charge(request, -request.owed)
        home = request.residence
        home.restore_end = min(home.restore_end, home.planned)  # the rest was neither restored nor computed
        request.paid = request.prompt_length - request.owed
        self._free_slots.append(home.slot)
        self._grammars.unload(request.constraint)
        request.home = None

    def _matched(self, request: Request) -> int:
        """How much of it needs no computing."""
        fetched = request.fetch.end * self._cache.page_size if request.fetch is not None else 0
        return max(fetched, self._cache.matched(request.namespace, bytes(request.tokens)))

    def _awaits(self, request: Request, busy: Iterable[Request]) -> bool:
        if request.wants_prompt_logprobs or request.namespace is None or not self._cache.enabled:
            return False
        return awaits_prefix(request, self._matched(request), busy, self._cache.page_size)

    def _lend_turn(self, request: Request) -> None:
        """A prefill inherits the priority of the requests that wait for its pages."""
        if request.awaited is None:
            return
        turn = self.waiting.turn(request.priority, request.tenant)
        if turn < self._own_turn(request.awaited.by):
            request.awaited.home.lend(LentTurn(turn, request.awaited.tokens))

    def _own_turn(self, request: Request) -> Turn:
        in_order = not request.residence.urgent
        return self._fairness.turn(request.priority, request.tenant, in_order)

    def _running_turn(self, request: Request) -> Turn:
        home = request.residence
        lent = (each.turn for each in home.lent if home.planned < each.tokens)
        return min([self._own_turn(request), *lent])

    def _tokens_before(self, turn: Turn, busy: Iterable[Request]) -> int:
        """How many tokens of prompts and forced runs are computed before a request of that turn."""
        return sum(
            request.residence.prefill_end - request.residence.ready
            for request in busy
            if request.computes_forced or (request.computes_prompt and self._running_turn(request) <= turn)
        )

    def _restored_before(self, request: Request, busy: Iterable[Request]) -> int:
        """How many tokens of prompts are restored before those of a request that waits."""
        turn = self.waiting.turn(request.priority, request.tenant)
        before = (r for r in busy if r.computes_prompt and self._running_turn(r) <= turn)
        return sum(other.residence.to_restore for other in before)

    def _start(self, request: Request, running: int, busy: Iterable[Request]) -> bool:
        """Gives it a slot and pages; the `running` requests keep what the steps in flight could take."""
        reserve = running * max(1, STEPS_IN_FLIGHT // self._cache.page_size)
        home = take_residence(request, self._free_slots[0], self._cache, reserve, alone=not running)
        if home is None:
            return False
        turn = self.waiting.turn(request.priority, request.tenant)
        home.urgent = turn.is_last
        self._put_back(turn, busy)
        self._free_slots.popleft()
        self.waiting.admit(request)
        request.phase = Phase.RUNNING
        request.home = home
        self._fairness.charge(request, request.owed)
        return True

    def _put_back(self, turn: Turn, busy: Iterable[Request]) -> None:
        """Counts for those whose prompts must wait for a request of that turn."""
        for other in busy:
            if other.computes_prompt and self._running_turn(other) > turn:
                other.residence.preempted += 1
                other.residence.urgent |= other.residence.preempted >= self._bounds.overtaken
