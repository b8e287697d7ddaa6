"""Checks the ranges of a request's fields and builds its sampling parameters."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence, Sized
from itertools import islice
from typing import TypeVar

import msgspec

from ...runtime.errors import RequestError
from ...runtime.sampling_params import MAX_DRAFTS, SamplingDefaults, SamplingParams
from .declared import find_ranges, find_words
from .fields import MAX_SEED, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, CacheLease, SamplingFields
from .text.close_names import MAX_COMPARED, close_name

MAX_CHOICES_IN_ALL = 1024
MAX_BIASED_TOKENS = 1024
MAX_KEY_CHARACTERS = 256
MAX_NAMES_COMPARED = 256  # names of an object's fields compared with the name of a missing field
GREEDY_BELOW = 1e-5
GREEDY_TOP_P = 1e-9
"""A `top_p` that makes sampling greedy: the most likely token of any vocabulary has a higher probability."""
T = TypeVar("T")


def invalid_field(param: str, problem: str, code: str = "invalid_value") -> RequestError:
    """The error for a field whose value can't be served: its name and the problem make a sentence."""
    return RequestError(f"{param} {problem}.", param=param, code=code)


def check_range(
    name: str, value: float | None, low: float, high: float | None, *, above_low: bool = False
) -> None:
    """Raises a `RequestError` that names the field, the value and the permitted range."""
    if value is None:
        return
    too_low = value <= low if above_low else value < low
    if not too_low and (high is None or value <= high) and value == value:
        return
    if high is None:
        permitted = f"{'greater than' if above_low else 'at least'} {low}"
    else:
        permitted = f"{'above' if above_low else 'between'} {low} and {'at most ' if above_low else ''}{high}"
    shown = int(value) if value == value and abs(value) < 1e15 and value == int(value) else value
    raise invalid_field(name, f"is {shown}, but must be {permitted}")


def check_word(name: str, value: str | None, allowed: Sequence[str]) -> None:
    """Raises a `RequestError` that names the field, the value and the allowed words."""
    if value is not None and value not in allowed:
        words = ", ".join(repr(word) for word in allowed[:-1])
        raise invalid_field(name, f"is {value!r}, but must be {words} or {allowed[-1]!r}")


def check_count(name: str, values: Sized | None, max_count: int, what: str) -> None:
    """Raises a `RequestError` that names the field, its length and the limit."""
    if values is not None and len(values) > max_count:
        raise invalid_field(name, f"has {len(values)} {what}, but may have at most {max_count}")


def missing_field(param: str, sent: Iterable[str] = ()) -> RequestError:
    """The error for a required field that was not sent. `sent` are the names of the fields that were sent. If
    one of them looks like a misspelling of this field, the error says so."""
    short = [name for name in islice(sent, MAX_NAMES_COMPARED) if len(name) <= MAX_COMPARED]
    field = param.rpartition(".")[2]
    without_unit = (name for name in short if field in (f"{name}_s", f"{name}_ms", f"{name}_seconds"))
    near = close_name(field, short) or next(without_unit, None)
    meant = "" if near is None else f" There is a field {near!r}: is it meant?"
    return RequestError(f"The required field {param} is missing.{meant}", param=param, code="missing_field")


def check_fields(fields: SamplingFields) -> None:
    check_declared(fields)
    check_salt(fields.cache_salt)
    check_lease(fields.cache_lease)
    stop_strings(fields)


def check_lease(lease: CacheLease | None) -> None:
    if lease is not None:
        check_declared(lease, "cache_lease.")
        check_key("cache_lease.key", lease.key)


def check_key(param: str, key: str | None) -> None:
    if key is not None:
        check_count(param, key, MAX_KEY_CHARACTERS, "characters")


def check_declared(fields: msgspec.Struct, prefix: str = "") -> None:
    """Raises a `RequestError` for a field outside of the range or words that its type declares. `prefix`
    comes before names in errors."""
    for name, (low, high, above_low) in find_ranges(type(fields)).items():
        check_range(prefix + name, getattr(fields, name), low, high, above_low=above_low)
    for name, words in find_words(type(fields)).items():
        check_word(prefix + name, getattr(fields, name), words)


def check_salt(salt: str | None) -> None:
    if salt == "":
        raise invalid_field("cache_salt", "must not be empty")


def check_choices(param: str, prompts: int, n: int, max_waiting: int) -> None:
    """Raises a `RequestError` if the request has more choices than may wait: all are accepted together.

    param: the field of the prompts
    """
    max_choices = min(MAX_CHOICES_IN_ALL, max_waiting)
    if prompts * n <= max_choices:
        return
    given = f"n is {n}" if prompts == 1 else f"{prompts} prompts with n of {n} make {prompts * n} choices"
    why = ", as no more may wait at once (--max-waiting)" if max_choices < MAX_CHOICES_IN_ALL else ""
    raise RequestError(
        f"{given}, but a request may have at most {max_choices}{why}.",
        param="n" if prompts == 1 else param,
        code="invalid_value",
    )


def stop_strings(fields: SamplingFields) -> list[str]:
    stop = [fields.stop] if isinstance(fields.stop, str) else (fields.stop or [])
    check_stop_strings("stop", stop)
    return stop


def check_stop_strings(name: str, stop: Sequence[str]) -> None:
    check_count(name, stop, MAX_STOP_STRINGS, "strings")
    longest = max(map(len, stop), default=0)
    if longest > MAX_STOP_CHARACTERS:
        raise invalid_field(
            name, f"has a string of {longest} characters, but they may have at most {MAX_STOP_CHARACTERS}"
        )
    if "" in stop:
        raise invalid_field(name, "must not contain an empty string")


def count_alternatives(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """The alternatives for each token of a chat's reply; None without log-probabilities. Raises
    `RequestError`."""
    if top_logprobs and not logprobs:
        raise invalid_field("top_logprobs", f"is {top_logprobs}, but is only allowed when logprobs is true")
    return (top_logprobs or 0) if logprobs else None


def check_token_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise invalid_field(name, f"has the token id {wrong}, but ids must be between 0 and {vocab_size - 1}")


def logit_bias(bias: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > MAX_BIASED_TOKENS:
        raise invalid_field("logit_bias", f"has {len(bias)} tokens, but may have at most {MAX_BIASED_TOKENS}")
    ids: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit()):
            raise invalid_field(
                "logit_bias", f"has the key {key!r}, but keys must be token ids from 0 to {vocab_size - 1}"
            )
        check_token_ids("logit_bias", [int(key)], vocab_size)
        check_range(f"logit_bias[{key}]", value, -100, 100)
        ids[int(key)] = value
    return ids


def check_prompt_logprobs_start(start: int | None, prompt_logprobs: int | None, prompt_tokens: int) -> None:
    """Refuses a start beyond `prompt_tokens`, the length of the request's shortest prompt."""
    if start is None:
        return
    if prompt_logprobs is None:
        problem = "needs prompt_logprobs, or with echo logprobs: give one of them, or leave it out"
        code = "missing_field"
    elif start >= prompt_tokens:
        problem = (
            f"is {start}, but the prompt has {tokens_in_words(prompt_tokens)}: it must be at most "
            f"{prompt_tokens - 1}"
        )
        code = "invalid_value"
    else:
        return
    raise invalid_field("prompt_logprobs_start", problem, code)


def request_seed(seed: int | None) -> int:
    """The seed of choice 0: 63 bits, drawn at random when none is given."""
    return secrets.randbits(63) if seed is None else seed & MAX_SEED


def choice_seed(seed: int, choice: int) -> int:
    return (seed + choice) & MAX_SEED


def sampling_params(
    fields: SamplingFields,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    vocab_size: int,
    defaults: SamplingDefaults,
) -> SamplingParams:
    """The request's sampling parameters, with choice 0's seed. Call `check_fields` first.

    `max_tokens` is the most tokens that the reply may have.
    """
    min_tokens = fields.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid_field(
            "min_tokens",
            f"is {min_tokens}, but the reply can have at most {tokens_in_words(max_tokens)}: max_tokens, "
            "or what the prompt leaves of the context, allows no more",
        )
    if fields.complete_json and logprobs is not None:
        raise invalid_field("complete_json", "is not available with logprobs: what it adds is not sampled")
    stop_token_ids = tuple(dict.fromkeys(fields.stop_token_ids or ()))
    check_token_ids("stop_token_ids", stop_token_ids, vocab_size)
    top_p = _or(fields.top_p, defaults.top_p)
    is_greedy = top_p < GREEDY_TOP_P
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=0.0 if is_greedy else _temperature(_or(fields.temperature, defaults.temperature)),
        top_k=min(max(_or(fields.top_k, defaults.top_k), 0), vocab_size),
        top_p=1.0 if is_greedy else top_p,
        min_p=_or(fields.min_p, defaults.min_p),
        repetition_penalty=_or(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        logit_bias=logit_bias(fields.logit_bias, vocab_size),
        seed=request_seed(fields.seed),
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=stop_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_logprobs_start=fields.prompt_logprobs_start or 0,
        complete_json=bool(fields.complete_json),
        max_drafts=_or(fields.speculate, MAX_DRAFTS),
    )


def _temperature(temperature: float) -> float:
    """0 (greedy sampling) for a temperature below `GREEDY_BELOW`: dividing by it would overflow logits."""
    return 0.0 if temperature < GREEDY_BELOW else temperature


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def tokens_in_words(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def shorten(param: str) -> str:
    """The advice in errors about a prompt that is too long."""
    return "shorten it or drop earlier turns" if param == "messages" else "shorten it"


def too_long(message: str, param: str) -> RequestError:
    return RequestError(message, param=param, code="context_length_exceeded")
