"""Task 2: questions about a document in the prompt, which has the answers or not."""

from __future__ import annotations

from dataclasses import dataclass

from .conversation import Conversation, Turn
from .document_kinds import COMPANY_ENDINGS, FILLERS, KINDS, PLACE_BEGINNINGS, Attribute, Kind
from .lexicon import PRODUCTS, Words

SHARED_WORDS = {"the", *PRODUCTS, *COMPANY_ENDINGS, *PLACE_BEGINNINGS}
NOT_TOLD = "The document does not say that."
FRAMES = (
    "Document:\n{document}\n\nQuestion: {question}",
    "Read the document and answer the question.\n\n{document}\n\nQuestion: {question}",
    "{document}\n\n{question}",
    "Context: {document}\n\nAnswer from the context: {question}",
    "Here is a text.\n{document}\n\nUse the text to answer: {question}",
)
SYSTEM_FRAMES = (
    "Answer from this document:\n{document}",
    "You are a helpful assistant. Use only the following document.\n\n{document}",
    "{document}",
)


@dataclass(frozen=True)
class Fact:
    thing: str
    attribute: Attribute
    value: str

    def question(self, words: Words) -> str:
        return _sentence(words.pick(self.attribute.questions).format(e=self.thing))

    def answer(self) -> str:
        return _sentence(self.attribute.answer.format(e=self.thing, v=self.value))


def make_document_chat(words: Words, most_sentences: int, most_questions: int = 6) -> Conversation:
    """A document of up to `most_sentences` sentences and one to `most_questions` questions about it."""
    document, facts, things = _write(words, words.between(3, most_sentences))
    count = min(len(facts), words.between(1, most_questions))
    turns = [Turn(fact.question(words), fact.answer(), fact.value) for fact in words.sample(facts, count)]
    for index in range(len(turns)):
        if words.chance(0.13):
            turns[index] = Turn(_untold_question(words, facts, things), NOT_TOLD, NOT_TOLD)
    turns = [Turn(_typed(words, turn.user), turn.reply, turn.fact) for turn in turns]
    if words.chance(0.25):
        return Conversation("document", tuple(turns), words.pick(SYSTEM_FRAMES).format(document=document))
    first = words.pick(FRAMES).format(document=document, question=turns[0].user)
    turns[0] = Turn(first, turns[0].reply, turns[0].fact)
    system = "You are a helpful assistant." if words.chance(0.3) else None
    return Conversation("document", tuple(turns), system)


def _write(words: Words, sentences: int) -> tuple[str, list[Fact], list[tuple[Kind, str]]]:
    """Sentences about several things: in groups that may use "it", or shuffled, with some idle sentences."""
    kinds = words.sample(KINDS, words.between(1, len(KINDS)))
    grouped = words.chance(0.4)
    facts: list[Fact] = []
    things: list[tuple[Kind, str]] = []
    lines: list[str] = []
    while len(lines) < sentences:
        kind = words.pick(kinds)
        thing = _new_name(words, kind, things)
        things.append((kind, thing))
        wanted = min(len(kind.attributes), words.between(1, 5), sentences - len(lines))
        for position, attribute in enumerate(words.sample(kind.attributes, wanted)):
            fact = Fact(thing, attribute, attribute.value(words))
            facts.append(fact)
            pronoun = grouped and position > 0 and words.chance(0.3)
            template = words.pick(attribute.later if pronoun else attribute.sentences)
            lines.append(_sentence(template.format(e=thing, v=fact.value)))
        if words.chance(0.15):
            lines.append(words.pick(FILLERS))
    if not grouped:
        words.rng.shuffle(lines)
    separator = "\n" if words.chance(0.15) else " "
    return separator.join(lines), facts, things


def _new_name(words: Words, kind: Kind, things: list[tuple[Kind, str]]) -> str:
    """A name that shares no word with the document's other things, so that every question has one answer."""
    taken = {word for _, thing in things for word in thing.split()} - SHARED_WORDS
    while True:
        name = kind.name(words)
        if taken.isdisjoint(name.split()):
            return name


def _untold_question(words: Words, facts: list[Fact], things: list[tuple[Kind, str]]) -> str:
    """A question about an untold attribute of one of the document's things, or about a thing not in it."""
    kind, thing = words.pick(things)
    told = {id(fact.attribute) for fact in facts if fact.thing == thing}
    missing = [attribute for attribute in kind.attributes if id(attribute) not in told]
    if not missing or words.chance(0.4):
        thing = _new_name(words, kind, things)
        missing = list(kind.attributes)
    return _sentence(words.pick(words.pick(missing).questions).format(e=thing))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _typed(words: Words, question: str) -> str:
    if words.chance(0.1):
        question = question[0].lower() + question[1:]
    return question.rstrip("?") if words.chance(0.12) else question
