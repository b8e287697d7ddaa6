"""Programs on an `Engine` with the built-in model, beside the same calls without the language."""

from __future__ import annotations

from collections.abc import Iterator

import arbora as ab
import pytest
from arbora.frontend.language.state import State
from arbora.frontend.language.stream import Stream


@pytest.fixture(scope="module")
def engine() -> Iterator[ab.Engine]:
    with ab.Engine(device="cpu", dtype="float32", kv_memory="64MiB", debug="invariants") as engine:
        yield engine


@ab.program
def conversation(s: State, question: str) -> None:
    s += ab.system("You answer briefly.")
    s += ab.user(question)
    s += ab.assistant("I", ab.gen("answer", max_tokens=10, temperature=0))
    forks = s.fork(2)
    forks += ab.user("Is it good?")
    forks += ab.assistant(ab.select("good", ["yes", "no", "yes, but"]))


def test_a_chat_says_what_the_engine_says(engine: ab.Engine) -> None:
    state = conversation.run("Who are you?", backend=engine)
    messages = [
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "I"},
    ]
    alone = engine.chat(messages, max_tokens=10, temperature=0, continue_final_message=True)
    assert state["answer"] == alone.text
    assert state.messages()[-1]["content"] == "I" + alone.text


def test_select_takes_the_likeliest_choice_and_computes_only_the_choices(engine: ab.Engine) -> None:
    texts = ["The parcel is lost", "The parcel is here"]

    @ab.program
    def choose(s: State) -> None:
        s += "A report on parcels. " * 10
        s += ab.select("which", texts)

    state = choose.run(backend=engine)
    scores = engine.score("A report on parcels. " * 10, texts)
    assert state["which"] == texts[max((0, 1), key=lambda number: scores[number].mean)]
    assert state.scores("which") == pytest.approx(
        {text: score.mean for text, score in zip(texts, scores, strict=True)}, rel=1e-5
    )
    (again,) = choose.run(backend=engine).trace.calls
    assert again.cached_tokens >= again.prompt_tokens - sum(score.tokens for score in scores) - len(scores)


def test_text_has_the_default_length_of_the_http_api(engine: ab.Engine) -> None:
    @ab.program
    def text(s: State) -> None:
        s += "Hello" + ab.gen("more", ignore_eos=True)

    (call,) = text.run(backend=engine).trace.calls
    assert call.completion_tokens == 16


def test_streamed_pieces_join_to_the_reply(engine: ab.Engine) -> None:
    stream = conversation.stream("Who are you?", backend=engine)
    pieces = [part.text for part in stream if part.name == "answer"]
    assert len(pieces) > 1
    assert stream.state is not None
    assert "".join(pieces) == stream.state["answer"]


def test_tools_are_called(engine: ab.Engine) -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    @ab.program
    def ask(s: State) -> None:
        s += ab.user("How is the weather in Rome?")
        s += ab.assistant(
            ab.gen(
                "call",
                tools=[weather],
                tool_choice="required",
                max_tokens=60,
                temperature=0,
                complete_json=True,
            )
        )

    for state in (ask.run(backend=engine), finished(ask.stream(backend=engine))):
        (call,) = state.tool_calls("call")
        assert call.name == "weather"
        assert set(call.values()) == {"city"}


def finished(stream: Stream) -> State:
    for _ in stream:
        pass
    assert stream.state is not None
    return stream.state


def test_known_prompts_are_computed_ahead(engine: ab.Engine) -> None:
    assert ab.prewarm(conversation, "What is a prefix?", backend=engine) > 0
    first = conversation.run("What is a prefix?", backend=engine).trace.calls[0]
    assert first.cached_tokens >= first.prompt_tokens - 1
