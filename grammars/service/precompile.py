"""Fills numba's cache before the first grammar: `python -m arbora.grammars.service.precompile`."""

from __future__ import annotations

from ...runtime.compiled_code import CompiledNote
from ...runtime.grammar_spec import GrammarSpec
from ..jit import FOLDER
from ..masks.token_trie import make_tries
from ..tags.special_tokens import SpecialTokens
from .builder import AutomatonBuilder


def compile_builders() -> None:
    """Compiles the builder's kernels by building a regex and schemas."""
    note = CompiledNote(FOLDER)
    tries = make_tries([(bytes([byte]), byte) for byte in range(256)], (256,), 257)
    builder = AutomatonBuilder(tries, SpecialTokens({}))
    steps = {
        "masks": lambda: builder.build("regex", GrammarSpec("regex", "a")),
        "strings": lambda: builder.build("true", GrammarSpec("json_schema", "true")),
        "schemas": builder.warm_up,
    }
    for number, (name, compile_step) in enumerate(steps.items(), start=1):
        compile_step()
        print(f"  grammars: {name} compiled, {number} of {len(steps)}", flush=True)
    note.write()


if __name__ == "__main__":
    compile_builders()
