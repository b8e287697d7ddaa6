"""The `format`s that are enforced, as regexes for whole texts.

Sources: RFC 3339, 5321, 1123, 4291, 3986, 4122, 6901 and ISO 8601.
"""

from __future__ import annotations

_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_TAIL = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = "(?:" + "|".join(
    [rf"(?:{_GROUP}:){{6}}{_TAIL}", rf"::(?:{_GROUP}:){{5}}{_TAIL}"]
    + [
        rf"(?:(?:{_GROUP}:){{0,{before}}}{_GROUP})?::(?:{_GROUP}:){{{4 - before}}}{_TAIL}"
        for before in range(5)
    ]
    + [rf"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}", rf"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::"]
) + ")"  # fmt: skip
_ENCODED = r"%[0-9A-Fa-f]{2}"
_PLAIN = r"A-Za-z0-9._~!$&'()*+,;=\-"
_PATH_CHARACTER = rf"(?:[{_PLAIN}:@]|{_ENCODED})"
_AUTHORITY = (
    rf"(?:(?:[{_PLAIN}:]|{_ENCODED})*@)?(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[{_PLAIN}:]+)\]"
    rf"|(?:[{_PLAIN}]|{_ENCODED})*)(?::\d*)?"
)
_SEGMENTS = rf"(?:/{_PATH_CHARACTER}*)*"
_REST = rf"(?:\?(?:{_PATH_CHARACTER}|[/?])*)?(?:#(?:{_PATH_CHARACTER}|[/?])*)?"
_HIERARCHY = (
    rf"(?://{_AUTHORITY}{_SEGMENTS}|/(?:{_PATH_CHARACTER}+{_SEGMENTS})?|{_PATH_CHARACTER}+{_SEGMENTS}|)"
)
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:{_HIERARCHY}{_REST}"
_FIRST_SEGMENT = rf"(?:[{_PLAIN}@]|{_ENCODED})+"
_RELATIVE = (
    rf"(?://{_AUTHORITY}{_SEGMENTS}|/(?:{_PATH_CHARACTER}+{_SEGMENTS})?|{_FIRST_SEGMENT}{_SEGMENTS}|){_REST}"
)
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION = rf"P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:{_CLOCK})?|{_CLOCK})"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOSTNAME}|\[{_IPV4}\])",
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
