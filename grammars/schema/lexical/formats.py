"""Regexes for the values of `format` that are enforced. Each matches whole texts.

Sources: RFC 3339 (dates, times and, in its appendix A, durations), 5321 (email), 1123 (hostname), 4291
(ipv6), 3986 (uri), 3987 (iri), 6570 (uri-template), 9562 (uuid), 6901 (json-pointer), 4648 (byte).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...regex.dfa import Dfa
from ...regex.regex_dfa import compile_match

_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    r"(?:(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
    r"-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|(?:\d\d{_FOURTH}|{_FOURTH}00)-02-29)"
)
_TIME = (
    r"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
    r"|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00))"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_TAIL = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _ipv6(left_out: int) -> str:
    """A regex for IPv6 addresses in which `::` replaces `left_out` or more groups."""
    most = 8 - left_out
    ways = [rf"(?:{_GROUP}:){{6}}{_TAIL}"]
    for before in range(most + 1):
        start = rf"(?:{_GROUP}:){{{before - 1}}}{_GROUP}" if before else ""
        after = most - before
        ways.append(rf"{start}::(?:{_GROUP}(?::{_GROUP}){{0,{after - 1}}})?" if after else rf"{start}::")
        if after >= 2:
            ways.append(rf"{start}::(?:{_GROUP}:){{0,{after - 2}}}{_IPV4}")
    return "(?:" + "|".join(ways) + ")"


_IPV6 = _ipv6(1)
_BEYOND_ASCII = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF" + "".join(
    rf"\u{{{plane:X}{first:04X}}}-\u{{{plane:X}FFFD}}"
    for plane, first in [*((plane, 0) for plane in range(1, 14)), (14, 0x1000)]
)
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"
_ENCODED = r"%[0-9A-Fa-f]{2}"


def _uri(plain: str, private: str) -> tuple[str, str]:
    """Regexes of absolute URIs and of references. `plain` and `private` are additional characters that need
    no escape: `plain` everywhere, `private` only in queries."""
    plain = r"A-Za-z0-9._~!$&'()*+,;=\-" + plain
    character = rf"(?:[{plain}:@]|{_ENCODED})"
    future = r"[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=\-:]+"
    authority = (
        rf"(?:(?:[{plain}:]|{_ENCODED})*@)?(?:\[(?:{_IPV6}|{future})\]|(?:[{plain}]|{_ENCODED})*)(?::\d*)?"
    )
    segments = rf"(?:/{character}*)*"
    rooted = rf"//{authority}{segments}|/(?:{character}+{segments})?"
    rest = rf"(?:\?(?:[{plain}:@/?{private}]|{_ENCODED})*)?(?:#(?:[{plain}:@/?]|{_ENCODED})*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{character}+{segments}|){rest}"
    relative = rf"(?:{rooted}|(?:[{plain}@]|{_ENCODED})+{segments}|){rest}"
    return absolute, rf"(?:{absolute}|{relative})"


_URI, _URI_REFERENCE = _uri("", "")
_IRI, _IRI_REFERENCE = _uri(_BEYOND_ASCII, _PRIVATE)
_NAME_CHARACTER = rf"(?:[A-Za-z0-9_]|{_ENCODED})"
_VARIABLE = rf"{_NAME_CHARACTER}(?:\.?{_NAME_CHARACTER})*(?::[1-9]\d{{0,3}}|\*)?"
_URI_TEMPLATE = (
    rf"(?:[!#$&-;=?-\[\]_a-z~{_BEYOND_ASCII}{_PRIVATE}]|{_ENCODED}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)


_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LITERAL = rf"\[(?:{_IPV4}|[Ii][Pp][Vv]6:{_ipv6(2)})\]"
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|{_LITERAL})"


_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION = rf"P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{_CLOCK})?|{_CLOCK})"

HINTS = frozenset(("password", "binary"))
"""formats of OpenAPI that don't restrict a string"""
_REGEXES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
    "byte": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
}
FORMATS: dict[str, Callable[[], Dfa]] = {
    name: partial(compile_match, regex) for name, regex in _REGEXES.items()
}
