"""Programs on a backend that computes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import arbora as ab
import msgspec
import pytest
from arbora.frontend.engine.completion import ToolCall
from arbora.frontend.language.api_client import Usage
from arbora.frontend.language.backend import ChatPrompt, Prompt, Reply, TextPrompt
from arbora.frontend.language.background import _loop
from arbora.frontend.language.state import State
from arbora.frontend.language.tools import tool_definition
from scripted_backend import ScriptedBackend


@ab.program
def greeting(s: State, name: str) -> None:
    s += f"Hello {name}," + ab.gen("first", max_tokens=4)
    s += " and" + ab.gen("second")


@ab.program
def interview(s: State, question: str) -> list[str]:
    s += ab.system("Be brief.")
    s += ab.user(question)
    s += ab.assistant("Well,", ab.gen("answer"))
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += ab.user(f"Why {number}?")
        fork += ab.assistant(ab.gen("why"))
    s += ab.user("Sure?")
    s += ab.assistant(ab.select("sure", ["no", "yes"]))
    return forks["why"]


def test_each_call_sees_all_that_was_said_before() -> None:
    backend = ScriptedBackend()
    state = greeting.run("Ann", backend=backend)
    assert backend.texts() == ["Hello Ann,", "Hello Ann, yes and"]
    assert (state["first"], state["second"]) == (" yes", " yes")
    assert state.text() == "Hello Ann, yes and yes"


def test_a_chat_sends_messages_and_the_beginning_of_the_reply() -> None:
    backend = ScriptedBackend()
    state = interview.run("Who?", backend=backend)
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    assert backend.prompts[0] == ChatPrompt(tuple(first), "Well,")
    answered = [*first, {"role": "assistant", "content": "Well, yes"}]
    whys = [ChatPrompt((*answered, {"role": "user", "content": f"Why {n}?"}), "") for n in range(3)]
    assert [prompt for prompt in backend.prompts if prompt in whys] != []
    assert all(why in backend.prompts for why in whys)
    assert state["sure"] == "yes"
    assert state.result == [" yes"] * 3
    assert state.messages()[-1] == {"role": "assistant", "content": "yes"}


def test_forks_run_side_by_side_and_keep_their_own_values() -> None:
    def say(prompt: Prompt, _: Mapping[str, Any]) -> str:
        assert isinstance(prompt, TextPrompt)
        return prompt.text[-1]

    @ab.program
    def letters(s: State) -> None:
        s += "x"
        forks = s.fork(3)
        for fork, letter in zip(forks, "abc", strict=True):
            fork += letter
            fork += ab.gen("echo")
        s += "".join(forks["echo"])

    backend = ScriptedBackend(say)
    state = letters.run(backend=backend)
    assert state.text() == "xabc"
    assert backend.most_open == 3
    assert [call.branch for call in state.trace.calls] == [(0,), (1,), (2,)]


def test_a_fork_knows_what_was_said_and_named_before_it() -> None:
    @ab.program
    def parent(s: State) -> tuple[str, str]:
        s += ab.gen("a")
        (fork,) = s.fork(1)
        s += " later"
        return fork["a"], fork.text()

    assert parent.run(backend=ScriptedBackend()).result == (" yes", " yes")


def test_an_error_names_the_statement_and_is_raised_by_every_read_behind_it() -> None:
    def say(prompt: Prompt, sampling: Mapping[str, Any]) -> str:
        raise ValueError("the model is on strike")

    seen: list[str] = []

    @ab.program
    def failing(s: State) -> None:
        s += "a" + ab.gen("x")
        s += ab.gen("y")
        for name in ("x", "y"):
            with pytest.raises(ab.ProgramError) as caught:
                s[name]
            seen.append(str(caught.value))

    with pytest.raises(ab.ProgramError, match=r"test_programs.py:.*the model is on strike") as caught:
        failing.run(backend=ScriptedBackend(say))
    assert seen == [str(caught.value)] * 2
    assert '`s += "a" + ab.gen("x")`' in seen[0]
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_unknown_name_is_a_key_error_with_the_near_one() -> None:
    state = greeting.run("Ann", backend=ScriptedBackend())
    with pytest.raises(KeyError, match=r"Did you mean first") as caught:
        state["frist"]
    assert isinstance(caught.value, ab.ProgramError)
    assert str(caught.value).startswith("test_programs.py:")


def test_a_batch_is_of_mappings() -> None:
    expected = r"batch\[1\] is 'Bo', but must be a mapping of the program's arguments, such as {'name': …}"
    with pytest.raises(TypeError, match=expected):
        greeting.run_batch([{"name": "Ann"}, "Bo"], backend=ScriptedBackend())  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda: ab.gen("x"), "must stand in arbora.assistant"),
        (lambda: "text", "text must stand in a turn"),
        (lambda: ab.assistant(ab.user("x")), "can't contain another turn"),
        (lambda: ab.tool("call_1", "sunny"), "must follow the assistant's turn"),
    ],
)
def test_what_no_chat_can_say_is_refused(add: Any, message: str) -> None:
    @ab.program
    def wrong(s: State) -> None:
        s += ab.user("Hi")
        s += add()

    with pytest.raises(ab.ProgramError, match=message):
        wrong.run(backend=ScriptedBackend())


def test_a_turn_behind_text_of_no_turn_is_refused() -> None:
    @ab.program
    def wrong(s: State) -> None:
        s += "Hello"
        s += ab.user("Hi")

    with pytest.raises(ab.ProgramError, match=r"belongs to no turn"):
        wrong.run(backend=ScriptedBackend())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ab.gen("x", max_token=3), TypeError, "Did you mean max_tokens"),  # type: ignore[call-arg]
        (lambda: ab.gen("x", regex="a", choices=["b"]), TypeError, "regex or choices, not both"),
        (lambda: ab.gen("x", json_schema=int.__add__), TypeError, "no schema and no type"),
        (lambda: ab.gen("x", json_schema=False), TypeError, "no schema and no type"),
        (lambda: ab.select("x", []), ValueError, "different, non-empty texts"),
        (lambda: ab.select("x", ["a", "a"]), ValueError, "different, non-empty texts"),
        (lambda: ab.select("x", [1]), ValueError, "different, non-empty texts"),  # type: ignore[list-item]
        (lambda: ab.gen("x", choices=[]), ValueError, "different, non-empty texts"),
        (
            lambda: ab.gen("x", max_tokens=-4),
            ValueError,
            r"gen\('x'\): max_tokens is -4, but must be at least",
        ),
        (lambda: ab.gen("x", temperature=3), ValueError, "temperature is 3, but must be between 0 and 2"),
        (lambda: ab.gen("x", max_tokens="4"), TypeError, 'max_tokens is "4", but must be an integer'),  # type: ignore[arg-type]
        (lambda: ab.gen("x", stop=5), TypeError, "stop is 5, but must be"),  # type: ignore[arg-type]
        (lambda: ab.user(ab.gen("x")), TypeError, "only an assistant's turn"),
        (lambda: ab.user("a", 3), TypeError, "3 is int"),  # type: ignore[arg-type]
        (lambda: ab.gen("x", tools=[lambda city: city]), TypeError, "whose type is not known"),
    ],
)
def test_wrong_expressions_are_refused_where_they_are_made(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@dataclasses.dataclass
class Person:
    name: str
    age: int


def test_a_reply_cut_off_before_its_value_is_complete_says_so() -> None:
    @ab.program
    def person(s: State) -> None:
        s += ab.gen("who", json_schema=Person, max_tokens=3)

    cut = Reply(text='{"name": "A', finish_reason="length")
    with pytest.raises(ab.ProgramError, match=r"'who' is no value of its type.*more max_tokens"):
        person.run(backend=ScriptedBackend(lambda *_: cut))


def test_tools_are_described_by_their_annotations_and_answered_by_turns() -> None:
    def weather(city: str, days: int = 1) -> str:
        """The weather of the next days."""
        return f"{days} sunny days in {city}"

    offered: list[Any] = []

    def say(prompt: Prompt, sampling: Mapping[str, Any]) -> Reply | str:
        offered.append(sampling.get("tools"))
        assert isinstance(prompt, ChatPrompt)
        if prompt.messages[-1]["role"] == "tool":
            return str(prompt.messages[-1]["content"])
        call = ToolCall("call_1", "weather", '{"city": "Rome"}')
        return Reply(text="", finish_reason="tool_calls", tool_calls=(call,))

    @ab.program
    def ask(s: State) -> None:
        s += ab.user("How is the weather?")
        s += ab.assistant(ab.gen("calls", tools=[weather]))
        for call in s.tool_calls("calls"):
            s += ab.tool(call, weather(**call.values()))
        s += ab.assistant(ab.gen("answer"))

    state = ask.run(backend=ScriptedBackend(say))
    assert state["answer"] == "1 sunny days in Rome"
    (definition,) = offered[0]
    function = definition["function"]
    assert (function["name"], function["description"]) == ("weather", "The weather of the next days.")
    assert function["parameters"]["required"] == ["city"]
    assert function["parameters"]["properties"]["days"] == {"type": "integer", "default": 1}
    assert [message["role"] for message in state.messages()] == ["user", "assistant", "tool", "assistant"]


def test_the_constraints_and_defaults_of_a_tools_parameters_are_kept() -> None:
    def forecast(
        days: Annotated[int, msgspec.Meta(ge=1, le=7)],
        units: list[str] = ["C"],  # noqa: B006
    ) -> None:
        """A forecast."""

    parameters = tool_definition(forecast)["function"]["parameters"]
    assert parameters["properties"]["days"] == {"type": "integer", "minimum": 1, "maximum": 7}
    assert parameters["properties"]["units"]["items"] == {"type": "string"}
    assert parameters["required"] == ["days"]


def test_a_batch_runs_side_by_side_and_keeps_its_order() -> None:
    backend = ScriptedBackend()
    states = greeting.run_batch([{"name": str(number)} for number in range(9)], backend=backend)
    assert [state.text() for state in states] == [f"Hello {number}, yes and yes" for number in range(9)]
    assert 1 < backend.most_open <= backend.concurrency


def test_programs_that_begin_together_share_one_event_loop() -> None:
    def loops() -> int:
        return [thread.name for thread in threading.enumerate()].count("arbora-programs")

    before = loops()
    _loop.cache_clear()
    greeting.run_batch([{"name": "Ann"}] * 50, backend=ScriptedBackend(), concurrency=50)
    assert loops() == before + 1


@ab.program
async def async_greeting(s: State, name: str) -> str:
    s += f"Hello {name}," + ab.gen("first")
    forks = s.fork(2)
    forks += ab.gen("more")
    return str(await s.value("first")) + "".join(await forks.values("more"))


def test_async_programs_run_with_and_without_a_running_loop() -> None:
    assert async_greeting.run("Ann", backend=ScriptedBackend()).result == " yes" * 3

    async def two() -> list[Any]:
        runs = (async_greeting.arun(name, backend=ScriptedBackend()) for name in "ab")
        return [state.result for state in await asyncio.gather(*runs)]

    assert asyncio.run(two()) == [" yes" * 3] * 2


async def test_reading_too_early_in_an_event_loop_says_what_to_write() -> None:
    @ab.program
    async def early(s: State) -> None:
        s += ab.gen("x")
        s["x"]

    with pytest.raises(ab.ProgramError, match=r"await state.value"):
        await early.arun(backend=ScriptedBackend())


def test_a_program_may_call_another() -> None:
    @ab.program
    def outer(s: State) -> None:
        s += "> "
        greeting(s, "Bob")

    assert outer.run(backend=ScriptedBackend()).text() == "> Hello Bob, yes and yes"


def test_no_backend_is_an_error_until_a_default_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.frontend.language.default_backend._default", [])
    with pytest.raises(TypeError, match=r"no backend is given"):
        greeting.run("Ann")
    with pytest.raises(TypeError, match=r"must be an arbora.Engine"):
        greeting.run("Ann", backend=3)
    ab.set_default_backend(ScriptedBackend())
    assert greeting.run("Ann")["first"] == " yes"


def test_the_trace_adds_up_and_is_shown_as_text_and_as_a_page() -> None:
    trace = interview.run("Who <b>?", backend=ScriptedBackend()).trace
    assert len(trace.calls) == 5
    assert (trace.prompt_tokens, trace.cached_tokens) == (60, 15)
    assert trace.cached_share == 0.25
    assert "select sure" in str(trace)
    assert trace.html().count("<tr>") == 6
    assert "ab.gen(&quot;why&quot;)" in trace.html()


def test_scores_finish_reasons_and_reasoning_are_kept_and_shown() -> None:
    said = Reply(text="It is", finish_reason="length", reasoning="Hm.", usage=Usage(0, 0, 2))
    state = interview.run("Who?", backend=ScriptedBackend(lambda *_: said))
    assert state.scores("sure") == {"no": -1.5, "yes": -1.0}
    assert (state.finish_reason("answer"), state.reasoning("answer")) == ("length", "Hm.")
    assert (state.finish_reason("sure"), state.scores("answer")) == ("", {})
    assert "2 in the reply (length)  It is" in str(state.trace)
    assert "scores yes -1.00, no -1.50  yes" in str(state.trace)
    assert "<td>length</td><td>It is</td>" in state.trace.html()
    assert "<td>yes -1.00, no -1.50</td><td>yes</td>" in state.trace.html()


def test_the_outline_shows_the_prefixes_without_a_model() -> None:
    outline = ab.trace(interview, "Who?")
    assert [(call.kind, call.name, call.prompt is not None) for call in outline.calls] == [
        ("gen", "answer", True),
        *[("gen", "why", False)] * 3,
        ("select", "sure", False),
    ]
    assert outline.reads is not None
    assert 'return forks["why"]' in outline.reads
    assert str(outline).splitlines()[:3] == [
        "system: 'Be brief.'",
        "  user: 'Who?'",
        "    assistant: 'Well,'",
    ]
