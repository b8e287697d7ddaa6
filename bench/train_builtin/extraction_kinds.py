"""The subjects of the JSON task's sentences, their fields, and the predicates that express each value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .lexicon import (
    COLOURS,
    GOODS,
    HOBBIES,
    INSTRUMENTS,
    JOBS,
    LANGUAGES,
    LEVELS,
    MATERIALS,
    SIZES,
    TAGS,
    Words,
)


@dataclass(frozen=True)
class Field:
    """`names` are property names it may get; `predicates` follow the subject; `draw` gives its value.

    For a boolean, the first half of `predicates` says true and the second half false.
    """

    names: tuple[str, ...]
    type: str
    predicates: tuple[str, ...]
    draw: Callable[[Words], Any]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """`names` are property names of the subject itself; `pronoun` begins every sentence after the first."""

    names: tuple[str, ...]
    name: Callable[[Words], str]
    lead: tuple[str, ...]
    pronoun: tuple[str, ...]
    fields: tuple[Field, ...]


def text(names: str, predicates: tuple[str, ...], draw: Callable[[Words], str]) -> Field:
    return Field(tuple(names.split()), "string", predicates, draw)


def integer(names: str, predicates: tuple[str, ...], low: int, high: int) -> Field:
    return Field(tuple(names.split()), "integer", predicates, lambda w: w.between(low, high))


def boolean(names: str, yes: tuple[str, ...], no: tuple[str, ...]) -> Field:
    return Field(tuple(names.split()), "boolean", (*yes, *no), lambda w: w.chance(0.5))


def enum(names: str, predicates: tuple[str, ...], options: list[str]) -> Field:
    return Field(tuple(names.split()), "enum", predicates, lambda w: w.pick(options), tuple(options))


def array(names: str, predicates: tuple[str, ...], items: list[str] | None) -> Field:
    def draw(words: Words) -> list[str]:
        count = words.between(1, 4)
        return words.sample(items, count) if items else [words.first_name() for _ in range(count)]

    return Field(tuple(names.split()), "array", predicates, draw)


PERSON = Subject(
    ("name", "person", "full_name"),
    lambda w: w.full_name() if w.chance(0.5) else w.first_name(),
    ("{s}", "{s}", "Our new colleague {s}", "My friend {s}"),
    ("She", "He", "They also", "This person"),
    (
        integer("age years age_years", ("is {v} years old", "is aged {v}", "turned {v} this year"), 5, 99),
        text("city home_city town", ("lives in {v}", "comes from {v}", "moved to {v}"), lambda w: w.city()),
        text("job profession occupation", ("works as a {v}", "is a {v} by trade"), lambda w: w.pick(JOBS)),
        text("employer company", ("works for {v}", "is employed at {v}"), lambda w: w.invented()),
        text("instrument", ("plays the {v}", "is learning the {v}"), lambda w: w.pick(INSTRUMENTS)),
        text("birthday birth_date", ("was born on {v}", "celebrates a birthday on {v}"), lambda w: w.date()),
        integer("children child_count", ("has {v} children", "is raising {v} children"), 2, 9),
        boolean("married is_married", ("is married",), ("is not married",)),
        boolean(
            "member is_member", ("is a member", "has a membership"), ("is not a member", "has no membership")
        ),
        array("hobbies interests", ("enjoys {v}", "likes {v}", "spends free time on {v}"), HOBBIES),
        array("languages", ("speaks {v}", "is fluent in {v}"), LANGUAGES),
        array("friends", ("is friends with {v}", "often meets {v}"), None),
    ),
)

ORDER = Subject(
    ("customer", "buyer", "customer_name", "name"),
    lambda w: w.full_name() if w.chance(0.5) else w.first_name(),
    ("{s}", "The customer {s}", "Our client {s}"),
    ("The customer", "The buyer", "The client also"),
    (
        text(
            "item product article",
            ("ordered some {v}", "bought {v}", "asked for {v}"),
            lambda w: w.pick(GOODS),
        ),
        integer(
            "quantity amount count", ("wants {v} pieces", "ordered {v} pieces", "takes {v} of them"), 2, 500
        ),
        integer("price total cost", ("pays {v} euros", "was charged {v} euros", "owes {v} euros"), 5, 9999),
        text("order_id order_number", ("has the order number {v}", "placed order {v}"), lambda w: w.code()),
        text(
            "city destination delivery_city",
            ("wants delivery to {v}", "has it sent to {v}"),
            lambda w: w.city(),
        ),
        text("date delivery_date", ("expects it on {v}", "needs it by {v}"), lambda w: w.date()),
        text("color colour", ("prefers the colour {v}", "chose the {v} version"), lambda w: w.pick(COLOURS)),
        enum("size", ("chose the size {v}", "takes size {v}"), SIZES),
        enum("payment payment_method", ("pays by {v}", "will use {v} to pay"), ["card", "cash", "transfer"]),
        boolean("paid is_paid", ("has already paid",), ("has not paid yet",)),
        boolean("gift is_gift", ("wants it as a gift",), ("does not want it as a gift",)),
        array("extras items", ("adds {v}", "also takes {v}"), GOODS),
    ),
)

TICKET = Subject(
    ("title", "ticket", "project", "name"),
    lambda w: w.invented(),
    ("The project {s}", "The ticket {s}", "Project {s}"),
    ("It", "It also", "The work"),
    (
        text(
            "owner assignee assigned_to", ("is assigned to {v}", "belongs to {v}"), lambda w: w.first_name()
        ),
        text("reporter author", ("was reported by {v}", "was opened by {v}"), lambda w: w.first_name()),
        enum("priority level", ("has {v} priority", "is of {v} priority"), LEVELS),
        enum("status state", ("is {v}", "is currently {v}"), ["open", "closed", "blocked"]),
        integer("hours estimate", ("needs {v} hours", "will take {v} hours"), 2, 400),
        integer("budget", ("has a budget of {v} dollars", "may cost {v} dollars"), 100, 99999),
        text("deadline due_date due", ("is due on {v}", "must be done by {v}"), lambda w: w.date()),
        text(
            "version release", ("ships in version {v}",), lambda w: f"{w.between(1, 30)}.{w.between(0, 20)}"
        ),
        boolean("public is_public", ("is public",), ("is not public",)),
        boolean("approved is_approved", ("was approved",), ("was not approved",)),
        array("tags labels topics", ("is tagged {v}", "has the labels {v}"), TAGS),
        array("team members", ("involves {v}", "is done by {v}"), None),
    ),
)

PRODUCT = Subject(
    ("product", "name", "product_name", "brand"),
    lambda w: w.invented(),
    ("The {s}", "The product {s}", "Our {s}"),
    ("It", "It also", "This product"),
    (
        integer("price cost price_eur", ("costs {v} euros", "sells for {v} euros"), 5, 9999),
        integer("weight weight_grams grams", ("weighs {v} grams", "has a weight of {v} grams"), 20, 9999),
        integer("stock in_stock available", ("has {v} pieces in stock", "is available {v} times"), 2, 900),
        text("color colour", ("is {v} in colour", "comes in {v}"), lambda w: w.pick(COLOURS)),
        text("material", ("is made of {v}", "consists of {v}"), lambda w: w.pick(MATERIALS)),
        text(
            "maker manufacturer vendor",
            ("is made by {v}", "comes from the maker {v}"),
            lambda w: w.invented(),
        ),
        text("code sku model", ("has the code {v}", "is listed as {v}"), lambda w: w.code()),
        integer(
            "warranty warranty_years", ("has a warranty of {v} years", "is covered for {v} years"), 2, 20
        ),
        enum("size", ("is {v} in size", "is of {v} size"), SIZES),
        boolean("waterproof", ("is waterproof",), ("is not waterproof",)),
        boolean("new is_new", ("is brand new",), ("is used",)),
        array("colors colours", ("can be had in {v}", "is sold in {v}"), COLOURS),
    ),
)

EVENT = Subject(
    ("event", "title", "event_name", "name"),
    lambda w: f"{w.invented()} {w.pick(('Festival', 'Fair', 'Meeting', 'Workshop', 'Concert', 'Trip'))}",
    ("The {s}", "The famous {s}", "This year the {s}"),
    ("It", "It also", "The event"),
    (
        text("city location place venue", ("takes place in {v}", "will be held in {v}"), lambda w: w.city()),
        text("date day", ("is on {v}", "happens on {v}"), lambda w: w.date()),
        text("organizer host", ("is organized by {v}", "is hosted by {v}"), lambda w: w.full_name()),
        integer("visitors guests attendees", ("expects {v} visitors", "has room for {v} visitors"), 10, 9999),
        integer("price ticket_price fee", ("costs {v} euros to enter", "has tickets for {v} euros"), 2, 400),
        integer("duration hours", ("lasts {v} hours", "goes on for {v} hours"), 2, 48),
        enum(
            "type kind category", ("is a {v} event", "counts as a {v} event"), ["private", "public", "school"]
        ),
        boolean("outdoor is_outdoor", ("is outdoors",), ("is indoors",)),
        boolean("free is_free", ("is free",), ("is not free",)),
        array("speakers guests_of_honour", ("presents {v}", "has talks by {v}"), None),
        array("topics subjects", ("is about {v}", "covers {v}"), TAGS),
    ),
)

SUBJECTS = (PERSON, ORDER, TICKET, PRODUCT, EVENT)
