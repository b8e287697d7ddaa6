"""Task 1: short chats in which the user tells facts and later asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .conversation import Conversation, Turn
from .lexicon import COLOURS, FOODS, HOBBIES, INSTRUMENTS, JOBS, LANGUAGES, MONTHS, PETS, WEEKDAYS, Words
from .small_talk import SYSTEMS, small_talk_turn, spoken

Slots = dict[str, str]


@dataclass(frozen=True)
class FactKind:
    """Templates for one kind of fact; `v` is the value asked for, other slots tell facts of a kind apart."""

    statements: tuple[str, ...]
    ack: str
    questions: tuple[str, ...]
    answer: str
    unknown: str
    slots: Callable[[Words], Slots]


RELATIONS = (
    "sister",
    "brother",
    "mother",
    "father",
    "friend",
    "neighbour",
    "boss",
    "cousin",
    "aunt",
    "teacher",
)

KINDS = (
    FactKind(
        (
            "My name is {v}.",
            "I am {v}.",
            "I'm {v}.",
            "Call me {v}.",
            "Hi, my name is {v}.",
            "Hello, I am {v}!",
        ),
        "Nice to meet you, {v}!",
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Tell me my name."),
        "Your name is {v}.",
        "You have not told me your name.",
        lambda w: {"v": w.first_name() if w.chance(0.7) else w.full_name()},
    ),
    FactKind(
        ("I live in {v}.", "My home is in {v}.", "I am from {v}.", "I moved to {v}.", "My city is {v}."),
        "{v} sounds like a good place to live.",
        ("Where do I live?", "Which city do I live in?", "What city am I from?", "Where is my home?"),
        "You live in {v}.",
        "You have not told me where you live.",
        lambda w: {"v": w.city()},
    ),
    FactKind(
        (
            "I have a {kind} called {v}.",
            "My {kind} is called {v}.",
            "I have a {kind} named {v}.",
            "My {kind}'s name is {v}.",
        ),
        "{v} is a lovely name for a {kind}.",
        ("What is my {kind} called?", "What is the name of my {kind}?", "What's my {kind}'s name?"),
        "Your {kind} is called {v}.",
        "You have not told me the name of your {kind}.",
        lambda w: {"v": w.first_name(), "kind": w.pick(PETS)},
    ),
    FactKind(
        (
            "My {kind} is called {v}.",
            "My {kind}'s name is {v}.",
            "The name of my {kind} is {v}.",
            "I visited my {kind} {v} today.",
        ),
        "Say hello to your {kind} {v} from me.",
        ("What is my {kind} called?", "What is the name of my {kind}?", "What's my {kind}'s name?"),
        "Your {kind} is called {v}.",
        "You have not told me the name of your {kind}.",
        lambda w: {"v": w.first_name(), "kind": w.pick(RELATIONS)},
    ),
    FactKind(
        ("I work as a {v}.", "I am a {v}.", "My job is {v}.", "I'm a {v} by profession."),
        "Being a {v} must be interesting.",
        ("What is my job?", "What do I do for a living?", "What's my profession?", "What do I work as?"),
        "You work as a {v}.",
        "You have not told me your job.",
        lambda w: {"v": w.pick(JOBS)},
    ),
    FactKind(
        ("I am {v} years old.", "I'm {v} years old.", "My age is {v}.", "I turned {v} this year."),
        "{v} is a fine age.",
        ("How old am I?", "What is my age?", "What's my age?", "Do you know how old I am?"),
        "You are {v} years old.",
        "You have not told me your age.",
        lambda w: {"v": str(w.between(11, 99))},
    ),
    FactKind(
        ("I play the {v}.", "I am learning the {v}.", "My instrument is the {v}.", "I love playing the {v}."),
        "The {v} is a beautiful instrument.",
        ("Which instrument do I play?", "What instrument do I play?", "What is my instrument?"),
        "You play the {v}.",
        "You have not told me which instrument you play.",
        lambda w: {"v": w.pick(INSTRUMENTS)},
    ),
    FactKind(
        ("I was born in {v}.", "My birthday is in {v}.", "I celebrate my birthday in {v}."),
        "{v} is a good month for a birthday.",
        ("When is my birthday?", "In which month was I born?", "What month is my birthday in?"),
        "Your birthday is in {v}.",
        "You have not told me when your birthday is.",
        lambda w: {"v": w.pick(MONTHS)},
    ),
    FactKind(
        ("I work for {v}.", "I work at {v}.", "My company is {v}.", "My employer is {v}."),
        "I hope that work at {v} goes well.",
        (
            "Where do I work?",
            "Which company do I work for?",
            "Who is my employer?",
            "What is my company called?",
        ),
        "You work for {v}.",
        "You have not told me where you work.",
        lambda w: {"v": w.invented()},
    ),
    FactKind(
        ("My {kind} number is {v}.", "The number of my {kind} is {v}.", "I have {kind} number {v}."),
        "I will remember {kind} number {v}.",
        ("What is my {kind} number?", "What's my {kind} number?", "Which {kind} number do I have?"),
        "Your {kind} number is {v}.",
        "You have not told me your {kind} number.",
        lambda w: {
            "v": w.code() if w.chance(0.4) else w.number(),
            "kind": w.pick(("room", "ticket", "order", "flight", "customer", "locker", "seat")),
        },
    ),
)

FAVOURITES: dict[str, list[str]] = {
    "colour": COLOURS,
    "color": COLOURS,
    "food": FOODS,
    "hobby": HOBBIES,
    "sport": HOBBIES,
    "month": MONTHS,
    "day": WEEKDAYS,
    "language": LANGUAGES,
}
FAVOURITES_INVENTED = ("book", "film", "band", "city", "restaurant", "team", "song", "game")


def favourite_slots(words: Words) -> Slots:
    if words.chance(0.5):
        kind = words.pick(FAVOURITES_INVENTED)
        return {"v": words.invented(), "kind": kind}
    kind = words.pick(tuple(FAVOURITES))
    return {"v": words.pick(FAVOURITES[kind]), "kind": kind}


FAVOURITE = FactKind(
    (
        "My favourite {kind} is {v}.",
        "My favorite {kind} is {v}.",
        "I like {v} best, it is my favourite {kind}.",
        "The {kind} I like most is {v}.",
    ),
    "{v} is a good choice.",
    ("What is my favourite {kind}?", "What's my favorite {kind}?", "Which {kind} do I like best?"),
    "Your favourite {kind} is {v}.",
    "You have not told me your favourite {kind}.",
    favourite_slots,
)
ALL_KINDS = (*KINDS, KINDS[0], KINDS[1], FAVOURITE, FAVOURITE, FAVOURITE)


def make_chat(words: Words, most_facts: int = 5) -> Conversation:
    """Tells one to `most_facts` facts, then asks for some of them, sometimes for one that was not told."""
    lower = words.chance(0.15)
    facts = _draw_facts(words, words.between(1, most_facts), lower)
    told: list[tuple[FactKind, Slots]] = []
    turns: list[Turn] = []
    while facts:
        batch = [facts.pop() for _ in range(min(len(facts), 1 + words.chance(0.3)))]
        turns.append(_tell(words, batch))
        told += batch
        if words.chance(0.3):
            turns.append(small_talk_turn(words))
        if words.chance(0.3):
            turns.append(_ask(words, words.pick(told)))
    if words.chance(0.12):
        told = _correct(words, told, turns, lower)
    turns.extend(_ask(words, fact) for fact in words.sample(told, words.between(1, len(told))))
    if words.chance(0.25):
        turns.insert(words.between(max(1, len(turns) - 2), len(turns)), _ask_untold(words, told))
    if words.chance(0.2):
        turns.insert(0, small_talk_turn(words))
    if words.chance(0.1):
        turns.append(small_talk_turn(words))
    system = words.pick(SYSTEMS) if words.chance(0.4) else None
    return Conversation("chat", tuple(spoken(words, turn, lower) for turn in turns), system)


def _draw_facts(words: Words, count: int, lower: bool) -> list[tuple[FactKind, Slots]]:
    facts: list[tuple[FactKind, Slots]] = []
    while len(facts) < count:
        kind = words.pick(ALL_KINDS)
        slots = kind.slots(words)
        if lower:
            slots["v"] = slots["v"].lower()
        if not any(_same_question((kind, slots), other) for other in facts):
            facts.append((kind, slots))
    return facts


def _same_question(one: tuple[FactKind, Slots], other: tuple[FactKind, Slots]) -> bool:
    return one[0].answer == other[0].answer and _topic(one[1]) == _topic(other[1])


def _topic(slots: Slots) -> str:
    return slots.get("kind", "").replace("color", "colour")


def _tell(words: Words, batch: list[tuple[FactKind, Slots]]) -> Turn:
    user = " ".join(words.pick(kind.statements).format(**slots) for kind, slots in batch)
    return Turn(user, " ".join(kind.ack.format(**slots) for kind, slots in batch))


def _ask(words: Words, fact: tuple[FactKind, Slots]) -> Turn:
    kind, slots = fact
    return Turn(words.pick(kind.questions).format(**slots), kind.answer.format(**slots), slots["v"])


def _ask_untold(words: Words, told: list[tuple[FactKind, Slots]]) -> Turn:
    while True:
        kind = words.pick(ALL_KINDS)
        slots = kind.slots(words)
        if not any(_same_question((kind, slots), other) for other in told):
            reply = kind.unknown.format(**slots)
            return Turn(words.pick(kind.questions).format(**slots), reply, reply)


def _correct(
    words: Words, told: list[tuple[FactKind, Slots]], turns: list[Turn], lower: bool
) -> list[tuple[FactKind, Slots]]:
    """The user changes one fact; the newest value counts."""
    index = words.between(0, len(told) - 1)
    kind, slots = told[index]
    fresh = kind.slots(words)
    while _topic(fresh) != _topic(slots):
        fresh = kind.slots(words)
    new_slots = {**slots, "v": fresh["v"].lower() if lower else fresh["v"]}
    statement = words.pick(kind.statements[:2]).format(**new_slots)
    turns.append(
        Turn(
            words.pick(("Sorry, I was wrong. ", "Correction: ", "No, wait. ")) + statement,
            kind.ack.format(**new_slots),
        )
    )
    return [*told[:index], (kind, new_slots), *told[index + 1 :]]
