"""The tasks of a grammar's process: compile the grammar with llguidance, or describe a structural tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...runtime.grammar_spec import GrammarSpec
from ..regex.of_spec import regex_of
from ..tags.format import Format, Grammar, Thinking, json_schemas, read_format
from .messages import CompileJob, Description

if TYPE_CHECKING:  # the scheduler must not load llguidance
    from .native import HostCompiler, NativeGrammar


def compiled_by_host(job: CompileJob, host: HostCompiler) -> NativeGrammar:
    """Compiles a grammar with llguidance. Raises GrammarError."""
    spec = job.spec
    match job.task:
        case "allow":
            return host.json_schema(spec.schema, spec.whitespace, "allow", spec.additional_properties)
        case "lark":
            return host.lark(job.lark)
        case "thinking":
            format = _thinking_in_lark(spec, job.lark)
            return host.structural_tag(format, spec.whitespace, spec.additional_properties)
    match spec.kind:
        case "regex" | "choice":
            return host.regex(regex_of(spec))
        case "structural_tag":
            return host.structural_tag(read_format(spec.text), spec.whitespace, spec.additional_properties)
    return host.json_schema(spec.schema, spec.whitespace, additional_properties=spec.additional_properties)


def described(spec: GrammarSpec) -> Description:
    """Describes a structural tag for the scheduler. Raises GrammarError."""
    format = read_format(spec.text)
    schemas = [(schema.function, schema.otherwise) for schema in json_schemas(format)]
    thought = format.content if isinstance(format, Thinking) else None
    return Description(schemas, thought.grammar if isinstance(thought, Grammar) else None)


def _thinking_in_lark(spec: GrammarSpec, lark: str) -> Format:
    """The format of a thought followed by a grammar; `lark` is that grammar in Lark."""
    format = read_format(spec.text)
    assert isinstance(format, Thinking), "only `thinking` contains a grammar in Lark"
    return msgspec.structs.replace(format, content=Grammar(lark))
