"""Task 3: a sentence and a schema in, compact JSON in the schema's property order out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .conversation import Conversation, Turn
from .extraction_kinds import SUBJECTS, Field, Subject
from .lexicon import Words

SYSTEMS = (
    "You extract data. Reply with JSON only.",
    "Reply in JSON.",
    "You are a helpful assistant.",
    "Fill in the JSON schema from the sentence.",
)
SCHEMA_FRAMES = (
    "{sentence}\n\nFill in this JSON schema: {schema}",
    "Extract the data as JSON.\nSchema: {schema}\nSentence: {sentence}",
    "Sentence: {sentence}\nSchema: {schema}",
    "Return JSON for this schema:\n{schema}\n\n{sentence}",
)
PLAIN_FRAMES = (
    "{sentence}\n\nGive me JSON with {fields}.",
    "Make JSON with the fields {fields} from this: {sentence}",
    "Extract {fields} as JSON.\n{sentence}",
)


@dataclass(frozen=True)
class Property:
    name: str
    field: Field | None
    """None for the subject itself."""

    def schema(self) -> dict[str, Any]:
        kind = self.field.type if self.field else "string"
        if kind == "enum":
            assert self.field is not None
            return {"type": "string", "enum": list(self.field.options)}
        return {"type": "array", "items": {"type": "string"}} if kind == "array" else {"type": kind}

    def plain(self) -> str:
        kind = self.field.type if self.field else "string"
        if kind == "enum":
            assert self.field is not None
            kind = "one of " + ", ".join(self.field.options)
        return f"{self.name} ({'list of strings' if kind == 'array' else kind})"


def make_extraction(words: Words, most_turns: int = 4) -> Conversation:
    """One schema of two to six properties and one to `most_turns` sentences to fill it from."""
    subject = words.pick(SUBJECTS)
    properties = _draw_properties(words, subject)
    schema = _schema(words, properties)
    ask = _frame(words, properties, schema)
    first_prompt, reply = _instance(words, subject, properties)
    turns = [Turn(ask.format(sentence=first_prompt), reply, reply)]
    for _ in range(words.between(0, most_turns - 1)):
        sentence, reply = _instance(words, subject, properties)
        turns.append(
            Turn(
                words.pick(("{}", "Now this: {}", "Sentence: {}", "The same for: {}")).format(sentence),
                reply,
                reply,
            )
        )
    system = words.pick(SYSTEMS) if words.chance(0.4) else None
    return Conversation("json", tuple(turns), system, schema)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _draw_properties(words: Words, subject: Subject) -> list[Property]:
    fields: list[Field | None] = list(words.sample(subject.fields, words.between(2, 5)))
    if words.chance(0.8):
        fields.insert(0, None)
    else:
        fields.insert(words.between(0, len(fields)), None)
    fields = fields[:6]
    if words.chance(0.15) and len(fields) > 2:
        fields.remove(None)
    return [Property(words.pick(field.names if field else subject.names), field) for field in fields]


def _schema(words: Words, properties: list[Property]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {p.name: p.schema() for p in properties}}
    if words.chance(0.7):
        schema["required"] = [p.name for p in properties]
    if words.chance(0.4):
        schema["additionalProperties"] = False
    return schema


def _frame(words: Words, properties: list[Property], schema: dict[str, Any]) -> str:
    if words.chance(0.35):
        fields = ", ".join(p.plain() for p in properties[:-1]) + f" and {properties[-1].plain()}"
        return words.pick(PLAIN_FRAMES).replace("{fields}", fields)
    printed = words.pick((json.dumps(schema), compact(schema), json.dumps(schema, indent=2)))
    return words.pick(SCHEMA_FRAMES).replace("{schema}", printed.replace("{", "{{").replace("}", "}}"))


def _instance(words: Words, subject: Subject, properties: list[Property]) -> tuple[str, str]:
    """The sentence and its JSON; the sentence may tell things that the schema does not ask for."""
    name = subject.name(words)
    values = {id(p.field): p.field.draw(words) for p in properties if p.field}
    told = [p.field for p in properties if p.field]
    others = [field for field in subject.fields if field not in told]
    for field in words.sample(others, words.pick((0, 0, 0, 1, 2))):
        told.append(field)
        values[id(field)] = field.draw(words)
    if words.chance(0.7):
        words.rng.shuffle(told)
    predicates = [_predicate(words, field, values[id(field)]) for field in told]
    sentence = _join(words, words.pick(subject.lead).format(s=name), subject.pronoun, predicates)
    return sentence, compact({p.name: values[id(p.field)] if p.field else name for p in properties})


def _predicate(words: Words, field: Field, value: Any) -> str:
    half = len(field.predicates) // 2
    if field.type == "boolean":
        return words.pick(field.predicates[:half] if value else field.predicates[half:])
    return words.pick(field.predicates).format(v=_spell_list(value) if isinstance(value, list) else value)


def _spell_list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _join(words: Words, lead: str, pronouns: tuple[str, ...], predicates: list[str]) -> str:
    """Sentences of one to three predicates each; the first names the subject."""
    sentences, start = [], lead
    while predicates:
        count = words.between(1, min(3, len(predicates)))
        group, predicates = predicates[:count], predicates[count:]
        sentences.append(f"{start} {_spell_list(group)}.")
        start = words.pick(pronouns)
    return " ".join(sentences)
