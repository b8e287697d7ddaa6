"""Each request is in exactly one container, that of its phase, and gives back all that it held."""

from __future__ import annotations

from arbora.runtime.messages import Abort, PeerDown, RowError
from arbora.runtime.scheduler.lifecycle import Lifecycle
from arbora.runtime.scheduler.request import Phase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_bench import SchedulerBench

WITHOUT_SLOT = {Phase.COMPILING, Phase.WAITING}
CLIENTS = st.integers(0, 1)


def check_containers(requests: Lifecycle, slots: int) -> None:
    compiling, waiting = list(requests._compiling.values()), list(requests.waiting)
    residents = list(requests.residents.values())
    for request in [*compiling, *waiting, *residents]:
        containers = [request in each for each in (compiling, waiting, residents)]
        by_phase = [request.phase is Phase.COMPILING, request.phase is Phase.WAITING]
        assert containers == [*by_phase, request.phase not in WITHOUT_SLOT]
        assert (request in requests.open) == (not request.is_answered)
    assert set(requests.open) <= {*compiling, *waiting, *residents}, "an open request is in a container"
    assert all(request.held is None for request in [*compiling, *waiting])
    taken = [request.allocation.slot for request in residents]
    assert taken == list(requests.residents)
    assert sorted([*taken, *requests._free_slots]) == list(range(slots))
    assert requests._places.total == len(compiling) + len(waiting)


class Lives(RuleBasedStateMachine):
    """Few slots and pages, so requests wait, are retracted, and end in every phase."""

    @initialize(slots=st.integers(1, 4), pages=st.integers(8, 24), write_through=st.booleans())
    def start(self, slots: int, pages: int, write_through: bool) -> None:
        self.slots = slots
        self.bench = SchedulerBench(
            pages, 4, slots, max_waiting=6, most_stored=50, host_pages=20, write_through=write_through
        )
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(1, 3), min_size=1, max_size=20),
        max_tokens=st.integers(0, 12),
        grammar=st.sampled_from([None, "even", "bad"]),
        client=CLIENTS,
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 1),
    )
    def submit(
        self, prompt: list[int], max_tokens: int, grammar: str | None, client: int, tenant: str, priority: int
    ) -> None:
        self.count += 1
        name = f"r{self.count}"
        self.bench.submit(name, prompt, max_tokens, grammar, client, tenant=tenant, priority=priority)

    @rule()
    def compile(self) -> None:
        self.bench.compiler.finish_all()
        self.bench.update()

    @rule()
    def plan(self) -> None:
        self.bench.plan()

    @rule()
    def step(self) -> None:
        if self.bench.model.plans:
            self.bench.step()

    @rule(row=st.integers(0, 3), kind=st.sampled_from(["not_a_number", "nothing_allowed"]))
    def fail_a_row(self, row: int, kind: str) -> None:
        if self.bench.model.plans:
            slots = [row.slot for row in self.bench.model.plans[0].rows if row.samples]
            result = self.bench.model.run_step()
            result.errors = [RowError(slot, kind, kind) for slot in slots[row : row + 1]]  # type: ignore[arg-type]
            self.bench.handle(result)

    @rule(number=st.integers(1, 20))
    def drop(self, number: int) -> None:
        self.bench.handle(Abort(f"r{number}"))

    @rule(number=st.integers(1, 20))
    def retract(self, number: int) -> None:
        request = self.bench.scheduler._requests.find(f"r{number}")
        if request is not None and request.phase is Phase.RUNNING:
            self.bench.scheduler._requests.retract(request)
            self.bench.deliver()

    @rule(client=CLIENTS)
    def lose_client(self, client: int) -> None:
        self.bench.handle(PeerDown("tokenizer", client))

    @rule()
    def answer_fetches(self) -> None:
        self.bench.answer_fetches(1)

    @invariant()
    def containers_agree_with_phases(self) -> None:
        if hasattr(self, "bench"):
            check_containers(self.bench.scheduler._requests, self.slots)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.compiler.finish_all()
        self.bench.run()
        scheduler = self.bench.scheduler
        check_containers(scheduler._requests, self.slots)
        assert scheduler.idle
        assert len(scheduler._requests._free_slots) == self.slots
        assert scheduler.stats().pages_used == 0
        assert not scheduler._fairness._periods, "no tenant contends for ever"
        assert not scheduler._stored._held_pages


Lives.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
