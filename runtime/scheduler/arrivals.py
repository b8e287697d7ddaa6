"""Accepts or refuses new requests."""

from __future__ import annotations

from array import array

from ...grammars import BusyError, CompilerError, GrammarError
from ...radix_cache import PrefixCache
from ..messages import Accepted, Generate, LeftOutKeyword, Refused
from .completion import Completion
from .grammar_loader import GrammarLoader
from .key_rates import KeyRates
from .lease_registry import LeaseRegistry
from .lifecycle import Lifecycle
from .queue_places import QueuePlaces
from .refusals import Limits, find_refusal, refuse_for_queue, refuse_grammar
from .replies import Replies
from .request import Request
from .results import Results, WaitBudget


class Arrivals:
    """Answers each `Generate` with `Accepted` or `Refused`, after compiling a grammar, if it has one."""

    def __init__(
        self,
        cache: PrefixCache,
        limits: Limits,
        key_rates: KeyRates,
        places: QueuePlaces,
        leases: LeaseRegistry,
        requests: Lifecycle,
        grammars: GrammarLoader,
        completion: Completion,
        results: Results,
        replies: Replies,
        wait_budget: WaitBudget,
    ) -> None:
        self._cache = cache
        self._limits = limits
        self._key_rates = key_rates
        self._places = places
        self._leases = leases
        self._requests = requests
        self._grammars = grammars
        self._completion = completion
        self._results = results
        self._replies = replies
        self._wait_budget = wait_budget
        self._compiled: dict[str, Request] = {}  # requests whose grammar's process has not answered

    @property
    def awaits_answers(self) -> bool:
        """Whether the process of a compiled grammar has not answered yet."""
        return bool(self._compiled)

    def submit(self, message: Generate, now: float) -> None:
        """Creates a request, unless a limit of its key, its size or the queue forbids it.

        `now` is in seconds of a monotonic clock.
        """
        admitted = self._key_rates.admit(message, now)
        if admitted is False:
            return  # an earlier choice of the same request was refused
        refused = admitted if isinstance(admitted, Refused) else self._find_refusal(message)
        if refused is not None:
            self._replies.add(message.client, refused)
            return
        self._leases.arrive(message)
        request = self._requests.create(message)
        request.arrived_at = now
        if message.grammar is None:
            self._accept(request)
        else:
            self._grammars.submit(request.id, message.grammar, message.sampling.complete_json, message.tenant)

    def take_grammars(self) -> None:
        """Accepts or refuses the requests whose grammars were compiled meanwhile.

        All constraints are made before the first is used. Each sends a question to its grammar's process when
        it is made, so the processes work on their answers side by side.
        """
        for request_id, compiled in list(self._grammars.take_finished()):
            request = self._requests.find(request_id)
            if request is None:
                continue
            if isinstance(compiled, GrammarError | CompilerError | BusyError):
                self._refuse(request, refuse_grammar(request, compiled))
            else:
                if request.output_length:  # made by a replica that has died
                    output = request.slice(request.prompt_length, request.length)
                    compiled.append(array("i", output).tolist())
                request.constraint = compiled
                self._compiled[request.id] = request
        for request in list(self._compiled.values()):
            if request.is_answered:
                del self._compiled[request.id]
            elif self._wait_budget.is_ready(request):
                del self._compiled[request.id]
                refused = self._completion.find_refusal(request)
                self._accept(request) if refused is None else self._refuse(request, refused)

    def _find_refusal(self, message: Generate) -> Refused | None:
        refused = find_refusal(message, self._limits, self._cache, self._leases.count_withheld(message))
        if refused is None and not self._places.admits(message.tenant):
            retry_after = self._places.retry_after(message.tenant, hash(message.prompt))
            refused = refuse_for_queue(message, self._places, retry_after)
        return refused

    def _accept(self, request: Request) -> None:
        self._requests.wait(request)
        left_out = request.constraint.left_out if request.constraint is not None else ()
        named = [LeftOutKeyword(keyword, path) for keyword, path in left_out]
        self._replies.add(request.client, Accepted(request.id, named))
        self._results.force(request)

    def _refuse(self, request: Request, refused: Refused) -> None:
        self._requests.refuse(request)
        self._replies.add(request.client, refused)
