"""JSON numbers as automata over their texts.

The texts have a limited number of digits, and an exponent only if no keyword constrains the value. If a
formula asks for integers, texts such as 1.0 are left out, so that every fact and its negation are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache, lru_cache

from ...errors import TooLargeError
from ...regex.dfa import NOTHING, REJECT, Dfa, combine, explore, intersect, minimize, unite
from ...regex.regex_dfa import compile_match

DIGITS = 20
PLACES = 17  # maximal significant digits: a double's shortest text has no more
EXACT_PLACES = 16  # maximal digits for constrained values: 0.99… with more would be read as 1
EXPONENT_DIGITS = 3
MAX_REMAINDERS = 2_000

_CUTS = (0, *range(0x2D, 0x2F), 0x2F, *range(0x30, 0x3B))
_OTHER, _MINUS, _POINT = 10, 11, 12
_CLASSES = (_OTHER, _MINUS, _POINT, _OTHER, *range(10), _OTHER)


@cache
def number_texts(*, exponents: bool, whole_fractions: bool) -> Dfa:
    """The automaton of the texts of all numbers. `whole_fractions`: a fraction may consist of zeros."""
    integer = rf"-?(?:0|[1-9]\d{{0,{DIGITS - 1}}})"
    fraction = rf"\.\d{{1,{PLACES if exponents else EXACT_PLACES}}}"
    if not whole_fractions:
        fractional = intersect(compile_match(integer + fraction), compile_match(r"-?\d*\.\d*[1-9]\d*"))
        return unite(compile_match(integer), fractional)
    exponent = rf"(?:[eE][+-]?\d{{1,{EXPONENT_DIGITS}}})?" if exponents else ""
    return compile_match(f"{integer}(?:{fraction})?{exponent}")


@lru_cache(512)
def compare(bound: Fraction) -> Dfa:
    """The automaton with labels 0, 1 and 2 for numbers less than, equal to and greater than `bound`."""
    whole, fraction = _decimal(abs(bound))

    def following(state: tuple[str, bool, int, int], column: int) -> tuple[str, bool, int, int] | None:
        phase, negative, position, order = state
        if column == _OTHER or (column == _MINUS and phase != "start"):
            return None
        if column == _MINUS:
            return "integer", True, 0, 1
        if column == _POINT:
            return ("fraction", negative, 0, _whole_order(state)) if phase == "integer" else None
        if phase == "fraction":
            return _after_fraction_digit(state, column)
        if position >= len(whole):
            return "integer", negative, len(whole) + 1, 2
        order = order if order != 1 else _sign(column - whole[position])
        return "integer", negative, position + 1, order

    def _after_fraction_digit(state: tuple[str, bool, int, int], digit: int) -> tuple[str, bool, int, int]:
        _, negative, position, order = state
        if order != 1:
            return "fraction", negative, 0, order
        expected = fraction[position] if position < len(fraction) else 0
        return "fraction", negative, min(position + 1, len(fraction)), _sign(digit - expected)

    def _whole_order(state: tuple[str, bool, int, int]) -> int:
        _, _, position, order = state
        return order if position == len(whole) else _sign(position - len(whole))

    def label(state: tuple[str, bool, int, int]) -> int:
        phase, negative, position, order = state
        if phase == "start":
            return REJECT
        if phase == "integer":
            order, position = _whole_order(state), 0
        if order == 1 and any(fraction[position:]):
            order = 0
        return _order_signed(order, negative, bound)

    return minimize(explore(_CUTS, _CLASSES, ("start", False, 0, 1), following, label))


def _order_signed(order: int, negative: bool, bound: Fraction) -> int:
    """The order of two negative numbers or of two others, from the order of their magnitudes; minus zero is
    zero."""
    if bound < 0:
        return 2 - order if negative else 2
    return (1 if bound == 0 and order == 1 else 0) if negative else order


def _sign(difference: int) -> int:
    return (difference > 0) - (difference < 0) + 1


def _decimal(value: Fraction) -> tuple[list[int], list[int]]:
    """The digits before and after the point."""
    places = _places(value)
    digits = str(value.numerator * 10**places // value.denominator).zfill(places + 1)
    whole = digits[: len(digits) - places]
    return [int(digit) for digit in whole], [int(digit) for digit in digits[len(digits) - places :]]


def _places(value: Fraction) -> int:
    """The number of digits after the point."""
    places = 0
    while value.denominator != 1:
        value *= 10
        places += 1
        if places > 400:
            raise TooLargeError("a number with more than 400 digits after the point")
    return places


@lru_cache(256)
def multiples(divisor: Fraction) -> Dfa:
    """The automaton of the multiples of `divisor`."""
    places = _places(divisor)
    modulus = divisor.numerator * 10**places // divisor.denominator
    if modulus * (places + 1) > MAX_REMAINDERS:
        raise TooLargeError(f"multipleOf needs more than {MAX_REMAINDERS} remainders")

    def following(state: tuple[int, int], column: int) -> tuple[int, int] | None:
        """State: (remainder, position); position is -1 before the point, else the digits after it, up to
        `places`."""
        remainder, position = state
        if column == _OTHER:
            return None
        if column == _MINUS:
            return state
        if column == _POINT:
            return remainder, 0
        if position == places:
            return state if column == 0 else None
        return (remainder * 10 + column) % modulus, position if position < 0 else position + 1

    def label(state: tuple[int, int]) -> int:
        remainder, position = state
        return 0 if remainder * 10 ** (places - max(position, 0)) % modulus == 0 else REJECT

    return minimize(explore(_CUTS, _CLASSES, (0, -1), following, label))


def one_of(values: Iterable[Fraction]) -> Dfa:
    """The automaton of all texts for these numbers."""
    dfa = NOTHING
    for value in values:
        equal = compare(value)
        dfa = combine(dfa, equal, lambda known, order: 0 if known == 0 or order == 1 else REJECT)
    return dfa
