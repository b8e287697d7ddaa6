"""Programs of the embedded language on a whole server: what they ask, and how they end."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import arbora as ab
import pydantic
import pytest
from arbora.frontend.language.background import start_thread
from arbora.frontend.language.http_backend import HttpBackend
from arbora.frontend.language.state import State
from served import HELLO, PATIENCE, Served, eventually, serve, text_of

LONG: Any = {"max_tokens": 3000, "ignore_eos": True}
SHORT: Any = {"max_tokens": 3, "ignore_eos": True}


@pytest.fixture
def backend(served: Served) -> HttpBackend:
    return ab.connect(served.url)


@ab.program
def endless(s: State, count: int = 2) -> None:
    s += "Once upon a time"
    forks = s.fork(count)
    forks += ab.gen("story", **LONG)
    forks.join()


@ab.program
async def endless_async(s: State, count: int = 2) -> None:
    s += "Once upon a time"
    forks = s.fork(count)
    forks += ab.gen("story", **LONG)
    await forks.values("story")


BOTH = pytest.mark.parametrize("program", [endless, endless_async], ids=["threads", "event loop"])


def when_running(served: Served, act: Callable[[], None]) -> None:
    """Acts on another thread, when the server generates for a request."""

    def watch() -> None:
        eventually(lambda: served.running > 0)
        act()

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture
def interrupt(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Presses Ctrl-C when the server generates."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: when_running(served, lambda: signal.pthread_kill(main, signal.SIGINT))
    signal.signal(signal.SIGINT, before)


@BOTH
def test_ctrl_c_ends_a_programs_requests(
    served: Served, backend: HttpBackend, interrupt: Callable[[], None], program: Any
) -> None:
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    eventually(lambda: served.is_quiet, 20)


@BOTH
def test_ctrl_c_ends_the_requests_of_a_batch(
    served: Served, backend: HttpBackend, interrupt: Callable[[], None], program: Any
) -> None:
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        program.run_batch([{"count": 1}] * 6, backend=backend, concurrency=3)
    eventually(lambda: served.is_quiet, 20)


def test_an_error_of_the_function_ends_its_requests(served: Served, backend: HttpBackend) -> None:
    @ab.program
    def failing(s: State) -> None:
        s += "Once" + ab.gen(**LONG)
        eventually(lambda: served.running > 0)
        raise LookupError("no such record")

    with pytest.raises(LookupError, match=r"no such record"):
        failing.run(backend=backend)
    eventually(lambda: served.is_quiet, 20)


def test_the_first_error_of_a_fork_ends_its_siblings(served: Served, backend: HttpBackend) -> None:
    @ab.program
    def failing(s: State) -> None:
        s += "Once"
        first, second = s.fork(2)
        first += ab.gen(**LONG)
        second += ab.gen(regex="(")

    with pytest.raises(ab.ProgramError, match=r"regex"):
        failing.run(backend=backend)
    eventually(lambda: served.is_quiet, 20)


@BOTH
def test_the_first_error_of_a_batch_ends_the_others(
    served: Served, backend: HttpBackend, program: Any
) -> None:
    with pytest.raises(ValueError, match=r"fork\(0\)"):
        program.run_batch([{}, {}, {"count": 0}], backend=backend)
    eventually(lambda: served.is_quiet, 20)


@BOTH
def test_a_stream_that_is_left_ends_its_requests(served: Served, backend: HttpBackend, program: Any) -> None:
    stream = program.stream(1, backend=backend)
    for part in stream:
        assert part.name == "story"
        break
    eventually(lambda: served.is_quiet, 20)
    assert stream.state is None


@BOTH
async def test_a_timeout_around_a_program_ends_its_requests(
    served: Served, backend: HttpBackend, program: Any
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await program.arun(backend=backend)
    await asyncio.to_thread(eventually, lambda: served.is_quiet, 20)


async def test_a_timeout_in_a_program_ends_the_call_and_the_program_goes_on(
    served: Served, backend: HttpBackend
) -> None:
    @ab.program
    async def impatient(s: State) -> str:
        s += "Once upon a time"
        slow, quick = s.fork(2)
        slow += ab.gen("story", **LONG)
        slow += ab.gen("moral", **SHORT)
        try:
            async with asyncio.timeout(0.3):
                await slow.value("moral")
        except TimeoutError:
            quick += ab.gen("summary", **SHORT)
        with pytest.raises(ab.ProgramError, match=r"cancelled"):
            await slow.value("moral")
        return str(await quick.value("summary"))

    state = await impatient.arun(backend=backend)
    assert state.result
    assert [call.name for call in state.trace.calls] == ["summary"]
    await asyncio.to_thread(eventually, lambda: served.is_quiet, 20)


def test_a_program_that_takes_every_exception_is_cancelled_too(served: Served, backend: HttpBackend) -> None:
    rounds = []

    @ab.program
    def stubborn(s: State) -> None:
        while True:
            rounds.append(time.monotonic())
            try:
                (fork,) = s.fork(1)
                fork += "Once" + ab.gen("story", **LONG)
                fork["story"]
            except Exception:
                continue

    for _ in stubborn.stream(backend=backend):
        break
    eventually(lambda: served.is_quiet, 20)
    count = len(rounds)
    time.sleep(0.2)
    assert len(rounds) == count


def test_many_forks_and_deep_forks_end(backend: HttpBackend) -> None:
    @ab.program
    def tree(s: State) -> None:
        s += "Once upon a time there was a"
        wide = s.fork(200)
        wide += ab.gen("word", max_tokens=1, ignore_eos=True)
        deep = s
        for _ in range(40):
            (deep,) = deep.fork(1)
            deep += ab.gen("word", max_tokens=1, ignore_eos=True)

    calls = tree.run(backend=backend).trace.calls
    assert len(calls) == 240
    assert max(len(call.branch) for call in calls) == 40


@ab.program
def numbered(s: State, number: int) -> int:
    s += f"{number}:" + ab.gen("x", **SHORT)
    return number


async def test_many_programs_without_async_run_side_by_side_in_an_event_loop(backend: HttpBackend) -> None:
    meeting = threading.Barrier(40, timeout=60)

    @ab.program
    def waits(s: State) -> None:
        s += "Once" + ab.gen(max_tokens=1)
        meeting.wait()

    await asyncio.gather(*(waits.arun(backend=backend) for _ in range(40)))


async def test_run_in_an_event_loop_works_or_says_what_to_write(backend: HttpBackend) -> None:
    @ab.program
    def short(s: State) -> str:
        s += "Once" + ab.gen("x", **SHORT)
        return str(s["x"])

    assert short.run(backend=backend).result
    with pytest.raises(RuntimeError, match=r"await program.arun"):
        endless_async.run(backend=backend)


class Fruit(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    color: Literal["red", "green"]


def test_types_and_any_json_object(backend: HttpBackend) -> None:
    @ab.program
    def extract(s: State) -> None:
        s += "A fruit in JSON: 日本 🙂"
        (fork,) = s.fork(1)
        fork += ab.gen("fruit", json_schema=Fruit, max_tokens=200, complete_json=True)
        s += ab.gen("any", json_schema=True, max_tokens=30, complete_json=True)
        assert isinstance(fork["fruit"], Fruit)

    assert isinstance(extract.run(backend=backend)["any"], dict)


@pytest.mark.parametrize(
    "choices",
    [[f" number {n}" for n in range(50)], [" yes", " yes please", " yes please do"], ["é", "日本", "é🙂"]],
)
def test_select_finds_the_choice_that_plain_requests_score_best(
    served: Served, backend: HttpBackend, choices: list[str]
) -> None:
    before = "The answer is"

    @ab.program
    def choose(s: State) -> None:
        s += before + ab.select("choice", choices)

    means = [mean_logprob(served, before, choice) for choice in choices]
    chosen = means[choices.index(choose.run(backend=backend)["choice"])]
    assert math.isclose(chosen, max(means), abs_tol=1e-4)


def mean_logprob(served: Served, before: str, choice: str) -> float:
    prompt, whole = (
        served.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        for text in (before, before + choice)
    )
    body = {"prompt": whole, "max_tokens": 0, "prompt_logprobs": 0}
    listed = served.http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    assert whole[: len(prompt)] == prompt
    values = [listed[at][str(whole[at])]["logprob"] for at in range(len(prompt), len(whole))]
    return float(sum(values) / len(values))


def test_gen_says_what_plain_requests_say(served: Served, backend: HttpBackend) -> None:
    asked: Any = {"max_tokens": 20, "temperature": 1, "seed": 7}

    @ab.program
    def chat(s: State) -> None:
        s += ab.user(HELLO[0]["content"])
        s += ab.assistant(ab.gen("first", ignore_eos=True, **asked))
        s += ab.user("Why?")
        s += ab.assistant(ab.gen("second", regex="[a-z ]{1,30}", **asked))

    state = chat.run(backend=backend)
    talk = served.client.chat.completions
    first = text_of(talk.create(model=served.model, messages=HELLO, extra_body={"ignore_eos": True}, **asked))
    said: Any = [*HELLO, {"role": "assistant", "content": first}, {"role": "user", "content": "Why?"}]
    regex = {"structured_outputs": {"regex": "[a-z ]{1,30}"}}
    second = text_of(talk.create(model=served.model, messages=said, extra_body=regex, **asked))
    assert (state["first"], state["second"]) == (first, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "prompt must not be empty"), ("x" * 40_000, "tokens"), ("a \ud800", "surrogate")],
)
def test_prompts_that_no_server_takes_name_the_statement(
    backend: HttpBackend, text: str, message: str
) -> None:
    @ab.program
    def ask(s: State) -> None:
        s += text + ab.gen("x")

    with pytest.raises(ab.ProgramError, match=rf'`s \+= text \+ ab.gen\("x"\)`.*{message}'):
        ask.run(backend=backend)


def test_select_needs_text_before_it(backend: HttpBackend) -> None:
    @ab.program
    def choose(s: State) -> None:
        s += ab.select("choice", ["a", "b"])

    with pytest.raises(ab.ProgramError, match=r"needs text before it"):
        choose.run(backend=backend)


def test_a_full_server_is_asked_again_until_a_batch_is_done(served_model: Path) -> None:
    numbers: Any = [{"number": number} for number in range(100)]
    with serve(served_model, "--max-running", "2", "--max-waiting", "2") as small:
        states = numbered.run_batch(numbers, backend=ab.connect(small.url))
    assert [state.result for state in states] == list(range(100))


def test_a_program_goes_on_when_its_server_is_back(served_model: Path) -> None:
    said = []

    @ab.program
    def counting(s: State) -> None:
        s += "Once"
        for number in range(60):
            s += ab.gen(str(number), max_tokens=1, ignore_eos=True)
            said.append(s[str(number)])

    with serve(served_model) as first:
        url, backend = first.url, ab.connect(first.url)
        end = start_thread(lambda: counting.run(backend=backend))
        eventually(lambda: len(said) > 5)
        first.process.kill()
        first.process.wait()
    assert len(said) < 60
    with serve(served_model, "--port", url.rsplit(":", 1)[1]):
        end.result(PATIENCE)
    assert len(said) == 60
