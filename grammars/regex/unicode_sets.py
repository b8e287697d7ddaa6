"""Unicode's sets of code points in ECMA-262's regexes: `\\p{…}`, and letters with all their cases."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache, lru_cache

import regex

from .ranges import EVERYTHING, LAST_CODE_POINT, Ranges, merge

_CATEGORIES = (
    "C Other Cc Control cntrl Cf Format Cn Unassigned Co Private_Use Cs Surrogate L Letter LC Cased_Letter "
    "Ll Lowercase_Letter Lm Modifier_Letter Lo Other_Letter Lt Titlecase_Letter Lu Uppercase_Letter M Mark "
    "Combining_Mark Mc Spacing_Mark Me Enclosing_Mark Mn Nonspacing_Mark N Number Nd Decimal_Number digit "
    "Nl Letter_Number No Other_Number P Punctuation punct Pc Connector_Punctuation Pd Dash_Punctuation "
    "Pe Close_Punctuation Pf Final_Punctuation Pi Initial_Punctuation Po Other_Punctuation "
    "Ps Open_Punctuation S Symbol Sc Currency_Symbol Sk Modifier_Symbol Sm Math_Symbol So Other_Symbol "
    "Z Separator Zl Line_Separator Zp Paragraph_Separator Zs Space_Separator"
)
_BINARY = (
    "ASCII AHex ASCII_Hex_Digit Alpha Alphabetic Assigned Bidi_C Bidi_Control Bidi_M Bidi_Mirrored CI "
    "Case_Ignorable Cased CWCF Changes_When_Casefolded CWCM Changes_When_Casemapped CWL "
    "Changes_When_Lowercased CWT Changes_When_Titlecased CWU Changes_When_Uppercased Dash DI "
    "Default_Ignorable_Code_Point Dep Deprecated Dia Diacritic Emoji EComp Emoji_Component EMod "
    "Emoji_Modifier EBase Emoji_Modifier_Base EPres Emoji_Presentation ExtPict Extended_Pictographic Ext "
    "Extender Gr_Base Grapheme_Base Gr_Ext Grapheme_Extend Hex Hex_Digit IDSB IDS_Binary_Operator IDST "
    "IDS_Trinary_Operator IDC ID_Continue IDS ID_Start Ideo Ideographic Join_C Join_Control LOE "
    "Logical_Order_Exception Lower Lowercase Math NChar Noncharacter_Code_Point Pat_Syn Pattern_Syntax "
    "Pat_WS Pattern_White_Space QMark Quotation_Mark Radical RI Regional_Indicator STerm Sentence_Terminal "
    "SD Soft_Dotted Term Terminal_Punctuation UIdeo Unified_Ideograph Upper Uppercase VS "
    "Variation_Selector space White_Space XIDC XID_Continue XIDS XID_Start"
)
_SCRIPTS = ("Script", "sc", "Script_Extensions", "scx")
_LAST_CASED = 0x1FFFF  # no code point after this one has cases


@lru_cache(64)
def property_ranges(name: str) -> Ranges | None:
    """The code points of a property as ECMA-262 writes it, such as L, Script=Greek or Emoji; None if there
    is no such property."""
    key, _, value = name.rpartition("=")
    if name == "Any":
        return EVERYTHING
    if _is_among(value, _CATEGORIES) and key in ("", "gc", "General_Category"):
        return _find_ranges(f"gc={value}")
    if (key in _SCRIPTS and value.replace("_", "").isalpha()) or _is_among(name, _BINARY):
        return _find_ranges(name)
    return None


def _is_among(name: str, names: str) -> bool:
    return name in names.split()


def _find_ranges(name: str) -> Ranges | None:
    try:
        found = regex.compile(rf"\p{{{name}}}+", regex.V1)
    except regex.error:  # the name of an unknown script
        return None
    everything = "".join(map(chr, range(LAST_CODE_POINT + 1)))
    return tuple((match.start(), match.end() - 1) for match in found.finditer(everything))


def with_other_cases(ranges: Ranges, *, is_unicode: bool) -> Ranges:
    """The code points, and all that differ from one of them in case only. `is_unicode`: compares as the
    flag u does, by Unicode's simple case folding; otherwise compares upper-case letters."""
    cases = _cases(is_unicode)
    cased = _collect_cases(is_unicode)
    more = [
        other
        for low, high in ranges
        for code in cased[bisect_left(cased, low) : bisect_left(cased, high + 1)]
        for other in cases[code]
    ]
    return merge([*ranges, *((code, code) for code in more)])


@cache
def _collect_cases(is_unicode: bool) -> list[int]:
    return sorted(_cases(is_unicode))


@cache
def _cases(is_unicode: bool) -> Mapping[int, tuple[int, ...]]:
    """For each code point with several cases, all of them."""
    canonical = _fold if is_unicode else _raise_case
    groups: dict[str, list[int]] = {}
    for code in range(_LAST_CASED + 1 if is_unicode else 0x10000):
        groups.setdefault(canonical(chr(code)), []).append(code)
    return {code: tuple(group) for group in groups.values() if len(group) > 1 for code in group}


def _fold(letter: str) -> str:
    """Simple case folding: one code point for one, so a letter whose full folding is longer is lowered."""
    for folded in (letter.casefold(), letter.lower()):
        if len(folded) == 1:
            return folded
    return letter


def _raise_case(letter: str) -> str:
    """The letter in upper case, unless that is longer, or an ASCII letter for another one."""
    raised = letter.upper()
    return letter if len(raised) > 1 or (raised.isascii() and not letter.isascii()) else raised
