"""Formats of strings against their standards: handwritten cases, and independent readers and writers."""

from __future__ import annotations

import base64
import ipaddress
import json
import random
import uuid
from collections.abc import Callable
from datetime import date, datetime

import pytest
from arbora.grammars.errors import NotCoveredError, TooLargeError
from arbora.grammars.schema.lexical.formats import FORMATS, HINTS
from arbora.runtime.grammar_spec import GrammarSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.provisional import domains, urls
from json_automata import COMPILER, compact, compile_schema, walked

LONGEST_LABEL = "a" * 63

RIGHT_AND_WRONG = {
    "date": (
        ["2024-02-29", "1900-12-31", "2000-02-29", "0001-01-01", "2023-06-30", "0004-02-29", "0400-02-29",
         "0010-10-10", "0100-01-01"],
        ["1900-02-29", "2023-02-29", "2024-13-01", "2024-00-10", "2024-04-31", "2024-01-00", "24-1-1",
         "2024-1-01", "2024/01/01", "20240101", "2024-001", "2024-W01-1", "2024-01-0१", "", "2024-01-01Z",
         "0000-01-01", "0000-02-29"],
    ),
    "time": (
        ["23:59:59Z", "00:00:00.5+01:30", "12:00:00z", "08:30:06.283185123456789Z", "23:59:60Z",
         "23:59:60.5+00:00", "01:01:01-23:59"],
        ["24:00:00Z", "12:00:00", "12:60:00Z", "12:00:61Z", "22:59:60Z", "23:58:60Z", "12:00Z", "1:00:00Z",
         "12:00:00.Z", "12:00:00+24:00", "12:00:00+0100", "12:00:00+01", "12:00:00 Z", "12:00:00,5Z"],
    ),
    "date-time": (
        ["2024-01-01T00:00:00Z", "2024-01-01t00:00:00.123-08:00", "1998-12-31T23:59:60Z"],
        ["2024-01-01", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00", "1998-12-31T22:59:60Z",
         "2023-02-29T00:00:00Z", "2024-01-01T", "2024-01-01T00:00:00ZZ",
         "0000-01-01T00:00:00Z", "0000-02-29T00:00:00Z"],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "PT1H", "P2W", "P1D", "P1YT1S", "PT36H", "P0D", "PT1M1S", "P1Y2M"],
        ["P", "PT", "1D", "P1H", "P1Y2D", "P1Y2D3M", "P1YT", "P2W1D", "PT1H1S", "P1.5D", "PT0.5S", "-P1D",
         "P1D1Y", "p1d", "P१Y"],
    ),
    "email": (
        ["a.b+c@d-e.fr", "a@[1.2.3.4]", "~a@b", '"joe bloggs"@b', '"a..b"@c.d', r'"\""@a', '""@a', "1@2",
         "a@[IPv6:::1]", "a@[IPv6:1:2:3:4:5:6:7:8]", "te~st@example.com", "!#$%&'*+-/=?^_`{|}~@a"],
        ["a", "@b", "a@", "a b@c", ".a@b", "a.@b", "a..b@c", "a@b@c", "a@-b", "a@b-", "a@b_c", "a@.b", "a@b.",
         "a@[1.2.3]", "a@[::1]", '"a@b', '"a"b@c', "Ann <a@b>", "a@b c", "é@a", "a@[IPv6:1:2:3:4:5:6:7::]"],
    ),
    "hostname": (
        ["a", "a-b.c1", "1host", "example.com", f"{LONGEST_LABEL}.com", "xn--4gbwdl.xn--wgbh1c", "0.0.0.0",
         "A.B"],
        ["", "-a", "a-", "a..b", ".a", "a.", "a_b", "a b", "a" * 64, "é.fr", "a-.b", "http://a"],
    ),
    "ipv4": (
        ["0.0.0.0", "255.10.9.1", "192.168.0.1"],
        ["256.1.1.1", "1.1.1", "01.1.1.1", "1.1.1.1.1", "1.1.1.", "0x7f.0.0.1", "1.1.1.1/24", "१.1.1.1"],
    ),
    "ipv6": (
        ["::", "::1", "1::", "1::8", "::1:2:3:4:5:6:7", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:1.2.3.4", "::1.2.3.4",
         "1::1.2.3.4", "1:2:3:4:5::1.2.3.4", "::ffff:1.2.3.4", "FE80::A", "1:2:3::5:6:7:8"],
        ["1", "1::2::3", ":::", ":1", "1:", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7", "g::",
         "1:2:3:4:5:6:7:1.2.3.4", "1:2:3:4:5:6::1.2.3.4", "::1.2.3", "::1.2.3.4:5", "fe80::1%eth0", "::1/64",
         "1:2:3:4:5:6:7::8", "::1.2.3.256"],
    ),
    "uri": (
        ["http://a.b/c?d=e#f", "urn:a:b", "mailto:a@b", "http://[::1]:80/", "file:///etc", "a:", "a:?", "a:/",
         "http://u:p@h:80/p;x?q=/?#f/?", "http://a/%2F%c3%A9", "tel:+1-2", "http://[v1.a:b]", "http://a:/"],
        ["/a", "//a", "a", "", "a b:c", "http://a b", "1a:b", ":b", "http://a/%zz", "http://a/%", "a:[b]",
         "http://a/é", "http://[1.2.3.4]/", "a:#b#c", "http://a\\b", "a:<b>", "http://a:8b", "a:^", "a:{b}"],
    ),
    "uri-reference": (
        ["../a?b", "#x", "", "http://a", "//a/b", "/", "/a//b", "a", "./a:b", "?", "a/b:c"],
        ["\\", "a b", "%zz", "1:b", ":", "#a#b", "é", "///[", "a|b", ":a"],
    ),
    "iri": (
        ["http://é.fr/ü?x=ß#ö", "http://a", "urn:\U00010000", "a:?\ue000", "a:日本"],
        ["é", "é:b", "a:\ue000", "a:b c", "a:#\ue000", "a:\ufdd0", "a:\ufffe", "a:\x9f", "//é"],
    ),
    "iri-reference": (
        ["é", "//é/ü", "#ö", "", "?\U000f0000", "http://日本"],
        ["é b", "%é", "é:b", "\\é", "\ue000", "\U000f0000"],
    ),
    "uri-template": (
        ["", "/a/{b}", "{+x}/{#y}{.z}{/w}{;v}{?u,t}{&s}", "{a:3}", "{a*}", "{a.b_1,c%20*}", "a%20b", "é{a}",
         "{a:9999}", "http://a/{?q*,lang}", "{!a}", "it's"],
        ["{", "}", "{}", "{a", "a}", "{a b}", "{a:0}", "{a:10000}", "{a:1*}", "{a,}", "{,a,}", "{.}",
         "{a..b}", "{é}", "%", "a b", "<a>", "a\\", "{-a}", "{{a}}", "a|b", "a^", "`"],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000",
         "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        ["123e4567e89b12d3a456426614174000", "x", "", "2eb8aa08-aa98-11ea-b4aa73b441d16380",
         "2eb8aa08-aa98-11ea-b4ga-73b441d16380", "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}",
         "2eb8aa0-8aa98-11ea-b4aa-73b441d16380"],
    ),
    "json-pointer": (
        ["", "/", "//", "/a~0b/~1", "/a b", "/é", "/-", '/"\\', "/~01"],
        ["a", "/~2", "/~", "#", "#/a", "0", "/~0~", "a/b"],
    ),
    "relative-json-pointer": (
        ["0", "1/a", "2#", "120/a~1", "0/"],
        ["", "/a", "01", "-1", "+1/a", "0##", "01#", "#", "1a"],
    ),
    "byte": (
        ["", "YQ==", "YWI=", "YWJj", "+/+/"],
        ["a", "YQ", "YQ=", "YW=j", "YWI-", "====", "YWJjYQ= ", "YWJj\n"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_accepts_the_texts_of_its_standard(name: str) -> None:
    dfa = FORMATS[name]()
    right, wrong = RIGHT_AND_WRONG[name]
    assert [text for text in right if dfa.label(text) < 0] == []
    assert [text for text in wrong if dfa.label(text) >= 0] == []


@pytest.mark.parametrize("name", ["regex", "idn-email", "idn-hostname", "no-such"])
def test_a_format_without_an_automaton_constrains_nothing_and_is_listed(name: str) -> None:
    schema = json.dumps({"type": "string", "format": name})
    compiled = COMPILER.compile(
        GrammarSpec("json_schema", schema, whitespace=(",", ":"), unenforced="annotations")
    )
    assert compiled.left_out == (("format", "#/format"),)
    assert compiled.machine.accepts(b'"((("')
    with pytest.raises(NotCoveredError, match="'format' at #/format"):
        compile_schema(schema)


def read_time(text: str) -> None:
    datetime.fromisoformat("2000-01-01T" + text)


READERS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "time": read_time,
    "date-time": datetime.fromisoformat,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "byte": lambda text: base64.b64decode(text, validate=True),
}


@pytest.mark.parametrize("name", READERS)
def test_other_libraries_read_the_texts_that_a_format_allows(name: str) -> None:
    automaton = compile_schema({"type": "string", "format": name})
    chance = random.Random(7)
    for length in range(80):
        text = json.loads(walked(automaton, chance, length % 40))
        if ":60" not in text:  # Python has no leap seconds
            READERS[name](text.upper())


WRITERS = {
    "date": st.dates().map(str),
    "date-time": st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    "time": st.times().map(lambda time: time.isoformat() + "+01:00"),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "uuid": st.uuids().map(str),
    "byte": st.binary().map(lambda data: base64.b64encode(data).decode()),
    "hostname": domains(),
    "email": st.emails(),
    "uri": urls(),
    "iri": urls(),
    "uri-reference": urls(),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(WRITERS)).flatmap(lambda name: st.tuples(st.just(name), WRITERS[name])))
def test_texts_that_other_libraries_write_have_their_format(written: tuple[str, str]) -> None:
    name, text = written
    assert FORMATS[name]().label(text) >= 0


@pytest.mark.parametrize("name", sorted(HINTS))
def test_a_format_without_constraints_allows_any_string(name: str) -> None:
    automaton = compile_schema({"type": "string", "format": name})
    assert automaton.accepts(compact('any "text"'))


@pytest.mark.parametrize("name", ["url", "Date", "semver"])
def test_a_format_without_an_automaton_is_refused_by_name(name: str) -> None:
    with pytest.raises(NotCoveredError, match=f"'format' at #/items/format.*{name}"):
        compile_schema({"items": {"format": name}})


def test_an_unknown_format_is_not_listed_if_no_string_is_allowed() -> None:
    schema = {"type": ["integer", "null"], "format": "int64"}
    assert compile_schema(schema).accepts(b"7")


def test_the_pattern_by_which_zod_repeats_the_format_hostname_is_enforced_for_each_label() -> None:
    label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    pattern = rf"^(?=.{{1,253}}\.?$){label}(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{{0,61}}[0-9a-zA-Z])?)*\.?$"
    schema = json.dumps({"type": "string", "format": "hostname", "pattern": pattern})
    compiled = COMPILER.compile(
        GrammarSpec("json_schema", schema, whitespace="compact", unenforced="annotations")
    )
    names = ["example.com", "a" * 63 + ".b", "a" * 64 + ".b", "a_b", "", "-a"]
    accepted = [name for name in names if compiled.machine.accepts(json.dumps(name).encode())]
    assert accepted == ["example.com", "a" * 63 + ".b"] and not compiled.left_out
    with pytest.raises(TooLargeError):  # asked to enforce all of it
        COMPILER.compile(GrammarSpec("json_schema", schema, whitespace="compact", unenforced="refuse"))
