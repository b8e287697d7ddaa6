"""The limits of API keys: requests and tokens per minute, and requests at once."""

from __future__ import annotations

from typing import Any

from arbora.runtime.api_keys import Quota
from arbora.runtime.messages import Accepted, FinishReason, Generate, Output, Outputs, Refused
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.key_rates import KeyRates
from hypothesis import given
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench


def generate(
    request: str, prompt: int | None = 10, key: str = "ada", client: int = 0, **limits: Any
) -> Generate:
    quota = Quota(key, prompt, **limits)
    return Generate(request, client, bytes(40), SamplingParams(max_tokens=9), quota=quota)


def output(request: str, tokens: int = 0, finish: FinishReason | None = None) -> Outputs:
    return Outputs([Output(request, bytes(4 * tokens), finish=finish)])


def refused(answer: Refused | bool) -> Refused:
    assert isinstance(answer, Refused)
    return answer


def test_a_request_without_a_quota_is_admitted() -> None:
    message = Generate("a-0", 0, bytes(4), SamplingParams(max_tokens=1))
    assert KeyRates().admit(message, 0.0) is True


def test_requests_per_minute_come_back_evenly_and_retry_after_is_true() -> None:
    rates = KeyRates()
    assert [rates.admit(generate(f"{i}-0", requests_per_minute=2), 0.0) for i in (0, 1)] == [True, True]
    third = refused(rates.admit(generate("2-0", requests_per_minute=2), 0.0))
    assert (third.status, third.code, third.retry_after) == (429, "requests_per_minute_exceeded", 30)
    assert isinstance(rates.admit(generate("3-0", requests_per_minute=2), 29.0), Refused)
    assert rates.admit(generate("4-0", requests_per_minute=2), 30.0) is True


def test_tokens_of_prompts_and_replies_count_and_may_overdraw() -> None:
    rates = KeyRates()
    assert rates.admit(generate("a-0", 10, tokens_per_minute=60), 0.0) is True
    rates.see(output("a-0", 80, "stop"))
    wait = refused(rates.admit(generate("b-0", 10, tokens_per_minute=60), 0.0))
    assert (wait.code, wait.retry_after) == ("tokens_per_minute_exceeded", 40)
    assert rates.admit(generate("c-0", 10, tokens_per_minute=60), 40.0) is True


def test_a_prompt_that_never_fits_is_refused_for_good() -> None:
    answer = refused(KeyRates().admit(generate("a-0", 61, tokens_per_minute=60), 0.0))
    assert (answer.status, answer.retry_after) == (400, None)


def test_requests_at_once_are_limited_until_one_ends() -> None:
    rates = KeyRates()
    assert rates.admit(generate("a-0", concurrent_requests=1), 0.0) is True
    busy = refused(rates.admit(generate("b-0", concurrent_requests=1), 0.0))
    assert (busy.status, busy.code, busy.retry_after) == (429, "concurrent_requests_exceeded", 1)
    rates.see(output("a-0", 1, "stop"))
    assert rates.admit(generate("c-0", concurrent_requests=1), 0.0) is True
    rates.end("c-0")  # its client has gone
    assert rates.admit(generate("d-0", client=7, concurrent_requests=1), 0.0) is True
    rates.drop_client(7)
    assert rates.admit(generate("e-0", concurrent_requests=1), 0.0) is True


def test_the_choices_of_a_request_are_one_request() -> None:
    rates = KeyRates()
    limits: dict[str, Any] = {"requests_per_minute": 1, "concurrent_requests": 1}
    assert rates.admit(generate("a-0", 10, **limits), 0.0) is True
    assert rates.admit(generate("a-1", None, **limits), 0.0) is True
    rates.see(output("a-0", 1, "stop"))
    assert isinstance(rates.admit(generate("b-0", **limits), 60.0), Refused)
    rates.see(output("a-1", 1, "length"))
    assert rates.admit(generate("b-0", **limits), 60.0) is True


def test_the_other_choices_of_a_refused_request_are_not_submitted() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", concurrent_requests=1), 0.0)
    rates.admit(generate("b-0", concurrent_requests=1), 0.0)
    assert rates.admit(generate("b-1", None, concurrent_requests=1), 0.0) is False


def test_a_choice_that_arrives_after_the_others_have_ended_is_admitted() -> None:
    rates = KeyRates()
    assert rates.admit(generate("a-0", concurrent_requests=1), 0.0) is True
    rates.see(output("a-0", 1, "stop"))
    assert rates.admit(generate("a-1", None, concurrent_requests=1), 0.0) is True
    assert isinstance(rates.admit(generate("b-0", concurrent_requests=1), 0.0), Refused)


def test_every_choice_is_answered_even_if_it_arrives_after_the_others_have_ended() -> None:
    bench = SchedulerBench()
    for name, prompt in (("a-0", 10), ("a-1", None)):
        bench.handle(generate(name, prompt, concurrent_requests=1))
        bench.run()
        assert name in bench.accepted and bench.finish(name) is not None


def test_a_request_that_is_sent_again_after_its_refusal_is_admitted_with_all_choices() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", concurrent_requests=1), 0.0)
    assert isinstance(rates.admit(generate("b-0", concurrent_requests=1), 0.0), Refused)
    rates.end("a-0")
    assert rates.admit(generate("b-0", concurrent_requests=1), 0.0) is True
    assert rates.admit(generate("b-1", None, concurrent_requests=1), 0.0) is True


def test_the_number_of_remembered_refusals_is_bounded() -> None:
    rates = KeyRates()
    for number in range(3000):
        rates.admit(generate(f"{number}-0", 61, tokens_per_minute=60), 0.0)
    assert len(rates._refused) <= 1024
    assert rates.admit(generate("2999-1", None, tokens_per_minute=60), 0.0) is False


def test_a_request_that_is_refused_for_another_reason_takes_nothing() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", 50, tokens_per_minute=60, requests_per_minute=1), 0.0)
    rates.see(Refused("a-0", 429, "The queue is full."))
    assert rates.admit(generate("a-1", None, tokens_per_minute=60, requests_per_minute=1), 0.0) is False
    assert rates.admit(generate("b-0", 60, tokens_per_minute=60, requests_per_minute=1), 0.0) is True


def test_an_accepted_request_is_told_what_is_left() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", 12, tokens_per_minute=60, requests_per_minute=6), 0.0)
    accepted = Accepted("a-0")
    rates.see(accepted)
    assert accepted.allowances is not None
    assert accepted.allowances.requests is not None and accepted.allowances.tokens is not None
    requests, tokens = accepted.allowances.requests, accepted.allowances.tokens
    assert (requests.limit, requests.left, requests.full_in_s) == (6, 5, 10.0)
    assert (tokens.limit, tokens.left, tokens.full_in_s) == (60, 48, 12.0)


def test_new_limits_hold_for_the_next_request() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", requests_per_minute=1), 0.0)
    assert rates.admit(generate("b-0", requests_per_minute=3), 0.0) is True
    assert isinstance(rates.admit(generate("c-0", requests_per_minute=1), 0.0), Refused)
    assert rates.admit(generate("d-0"), 0.0) is True


def test_keys_do_not_share_their_limits() -> None:
    rates = KeyRates()
    rates.admit(generate("a-0", requests_per_minute=1), 0.0)
    assert rates.admit(generate("b-0", key="bob", requests_per_minute=1), 0.0) is True


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 60), st.integers(0, 40)), max_size=60))
def test_retry_after_is_enough_and_not_a_second_too_long(requests: list[tuple[float, int, int]]) -> None:
    """A client that waits is admitted if nothing else takes tokens; a second earlier it is not."""
    rates, now = KeyRates(), 0.0
    for number, (pause, prompt, reply) in enumerate(requests):
        now += pause
        answer = rates.admit(generate(f"{number}-0", prompt, tokens_per_minute=60), now)
        if isinstance(answer, Refused):
            assert answer.retry_after is not None
            if answer.retry_after > 1:
                early = rates.admit(
                    generate("e-0", prompt, tokens_per_minute=60), now + answer.retry_after - 1.001
                )
                assert isinstance(early, Refused)
            now += answer.retry_after
            assert rates.admit(generate(f"{number}-0", prompt, tokens_per_minute=60), now + 1e-6) is True
        rates.see(output(f"{number}-0", reply, "stop"))
