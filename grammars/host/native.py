"""llguidance's compiler and matchers. Only llguidance's own processes import this module."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from msgspec import structs
from numpy.typing import NDArray

from ...runtime.grammar_spec import FIXED, GrammarSpec, JsonSpacing
from ..errors import CompilerError, GrammarError, NotCoveredError, ParserFailedError, WrongKeywordError
from ..machine.jump_forward import MAX_TEXT
from ..regex.pattern import read_regex
from ..schema.read.json_text import Json, parse_schema
from ..tags.format import Grammar, JsonSchema, Thinking, read_format
from ..tags.lark import write_lark
from .declared import forbid_undeclared
from .gbnf import convert_to_lark
from .json_schema import check_references, explain, remove_culprit, with_options

_SPECIAL_TOKEN = b"\xff"  # byte before a special token's name in llguidance's texts
_PANIC = "panic: "  # start of the error of a matcher whose parser failed
_TOO_WIDE = re.compile(r"Current row has (\d+) items; max is (\d+)")
MAX_STEP_ITEMS = 10_000  # parser items for each token; a request whose grammar is more ambiguous ends


class NativeMatcher:
    """Follows one request. An error is a value that ends the request, not the step."""

    def __init__(self, matcher: LLMatcher, eos_tokens: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos_tokens = eos_tokens
        self._error: GrammarError | CompilerError | None = None

    def consume(self, token: int) -> GrammarError | CompilerError | None:
        """Advances by an accepted token. Returns the first error of this or an earlier token, or None."""
        self._error = self._error or self._consume(token)
        return self._error

    def _consume(self, token: int) -> GrammarError | CompilerError | None:
        if self._matcher.is_error():  # beyond a limit, the mask allows only the end
            return self._explain_fault()
        if token in self._eos_tokens and (self._matcher.is_accepting() or self._matcher.is_stopped()):
            return None
        if self._matcher.consume_token(token):
            return None
        error = self._matcher.get_error()
        if error.startswith(_PANIC) or _TOO_WIDE.search(error):
            return self._explain_fault()
        return CompilerError(f"the output left its grammar: {_reword(error)}")

    def _explain_fault(self) -> GrammarError:
        error = self._matcher.get_error()
        if error.startswith(_PANIC):
            return ParserFailedError(f"llguidance fails at it: {error.removeprefix(_PANIC).splitlines()[0]}")
        return GrammarError(f"the grammar can't be followed: {_reword(error)}")

    def forced_text(self) -> bytes:
        """The text that must come next."""
        return self._matcher.compute_ff_bytes()[:MAX_TEXT]

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask of the next token, int32 [ceil(vocab / 32)], contiguous."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


@dataclass(frozen=True, eq=False)
class NativeGrammar:
    """A compiled grammar. Each request follows its own copy."""

    prototype: LLMatcher
    eos_tokens: tuple[int, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """keyword and path of each constraint that is not enforced"""

    def matcher(self) -> NativeMatcher:
        return NativeMatcher(self.prototype.deep_copy(), self.eos_tokens)


class HostCompiler:
    """Compiles grammars for one vocabulary."""

    def __init__(self, tokens: list[bytes], special: list[int], eos_tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        self._special = special
        self._eos_tokens = eos_tokens
        self.mask_words = -(-len(tokens) // 32)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_LongestMatch(tokens, special, eos_tokens)),
            n_vocab=len(tokens),
            eos_token=list(eos_tokens),
        )

    def compile(self, spec: GrammarSpec) -> NativeGrammar:
        """Compiles a grammar of any kind. Raises GrammarError."""
        match spec.kind:
            case "regex" | "choice":
                return self._compile(LLMatcher.grammar_from_regex(read_regex(spec)), "regex")
            case "grammar":
                return self._compile(LLMatcher.grammar_from_lark(convert_to_lark(spec.text)), "grammar")
            case "structural_tag":
                return self._compile_tag(spec)
        return self._compile_schema(spec)

    def _compile_schema(self, spec: GrammarSpec) -> NativeGrammar:
        """Compiles a schema. If the spec allows it, leaves out the keywords that can't be enforced."""
        schema = _read_schema(spec.schema, spec)
        check_references(schema)
        left_out: list[tuple[str, str]] = []
        while True:
            try:
                grammar = self._compile_whole_schema(schema, spec.whitespace)
                return replace(grammar, left_out=tuple(left_out))
            except NotCoveredError as error:
                if spec.unenforced != "allow" or isinstance(error, WrongKeywordError):
                    raise
                remove_culprit(error, schema)
                left_out.append((error.keyword, error.path))

    def _compile_whole_schema(self, schema: Json, whitespace: JsonSpacing) -> NativeGrammar:
        if isinstance(whitespace, str) and whitespace not in FIXED:
            # compact JSON forces text, so that the probe finds a schema that allows nothing
            self._compile_whole_schema(schema, "compact")
        options = json.dumps(with_options(schema, whitespace))
        return self._compile(LLMatcher.grammar_from_json_schema(options), "schema", schema)

    def _compile_tag(self, spec: GrammarSpec) -> NativeGrammar:
        format = read_format(spec.text)
        if isinstance(format, Thinking) and isinstance(format.content, Grammar):
            content = Grammar(convert_to_lark(format.content.grammar))
            format = structs.replace(format, content=content)

        def read_schema(part: JsonSchema) -> dict[str, Json]:
            schema = _read_schema(bytes(part.json_schema).decode(), spec)
            return with_options(schema, part.separators or spec.whitespace)

        grammar = write_lark(format, self._literal, read_schema, self._named.values())
        return self._compile(grammar, "structural tag")

    def _compile(self, grammar: str, what: str, schema: Json | None = None) -> NativeGrammar:
        """Compiles a grammar. `what` names it in errors; `schema` is the schema that it was made from, if
        any."""
        limits = LLParserLimits(verbose_errors=False, step_max_items=MAX_STEP_ITEMS)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise explain(matcher.get_error(), what, schema)
        probe = matcher.deep_copy()
        self._follow_forced(probe)
        if probe.is_error():  # some grammars that allow nothing fail only here
            raise GrammarError(f"the {what} {_reword(probe.get_error())}")
        return NativeGrammar(matcher, self._eos_tokens)

    def _follow_forced(self, probe: LLMatcher) -> None:
        """Advances by the text with which every reply begins."""
        probe.compute_bitmask()
        forced = probe.compute_ff_bytes()[:MAX_TEXT].partition(_SPECIAL_TOKEN)[0]
        if forced and not probe.is_error():
            probe.consume_tokens(self._tokenizer.tokenize_bytes(forced))
            probe.compute_bitmask()

    def _literal(self, text: str) -> list[str]:
        """Lark terms for a literal text. Names of special tokens in it stand for the tokens, except for
        end-of-sequence tokens."""
        terms: list[str] = []
        while text:
            found = [
                (text.find(name), -len(name), name, token)
                for name, token in self._named.items()
                if name in text
            ]
            if not found:
                return [*terms, json.dumps(text, ensure_ascii=False)]
            position, _, name, token = min(found)
            if position:
                terms.append(json.dumps(text[:position], ensure_ascii=False))
            terms.append(f"<[{token}]>")
            text = text[position + len(name) :]
        return terms

    @cached_property
    def _named(self) -> dict[str, int]:
        """The special tokens that structural tags may name and free text may contain."""
        named = [token for token in self._special if self._tokens[token] and token not in self._eos_tokens]
        return {self._tokens[token].decode(errors="replace"): token for token in reversed(named)}


def _read_schema(text: str, spec: GrammarSpec) -> Json:
    """Parses a schema, in which the spec may forbid undeclared properties."""
    schema = parse_schema(text)
    if spec.additional_properties == "declared":
        forbid_undeclared(schema)
    return schema


def _reword(error: str) -> str:
    """Rewords llguidance's messages about its parser as faults of the grammar."""
    if error.startswith(_PANIC):
        return f"makes llguidance fail: {error.removeprefix(_PANIC).splitlines()[0]}"
    if "NoExtensionBias" in error:
        return "allows no value, or none that ends"
    if "Too many items" in error:
        return f"is too large: the parser needs more than {MAX_STEP_ITEMS:,} steps for a token"
    if found := _TOO_WIDE.search(error):
        needed, most = map(int, found.groups())
        return f"is too large: the parser needs {needed:,} items for a byte; the most is {most:,}"
    return error.removesuffix("\n<non-verbose/>")


class _LongestMatch:
    """A tokenizer for llguidance. It always takes the longest match, which is good enough for forced text."""

    def __init__(self, tokens: list[bytes], special: list[int], eos_tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos_tokens[0]
        self.bos_token_id = None
        skipped = set(special)
        self._ids = {text: token for token, text in enumerate(tokens) if text and token not in skipped}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: bytes) -> list[int]:
        ids = []
        position = 0
        while position < len(text):
            for length in range(min(self._longest, len(text) - position), 0, -1):
                token = self._ids.get(text[position : position + length])
                if token is not None:
                    ids.append(token)
                    position += length
                    break
            else:
                position += 1
        return ids
