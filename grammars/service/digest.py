"""Digests that name compiled grammars."""

from __future__ import annotations

import hashlib

from ...runtime.grammar_spec import GrammarSpec


def digest_of(spec: GrammarSpec) -> bytes:
    """A digest of everything on which the compiled grammar depends."""
    options = (spec.kind, spec.separators, spec.property_order, spec.unenforced, spec.closing, spec.scope)
    digest = hashlib.sha256(spec.text.encode(errors="surrogatepass"))
    digest.update(b"\0" + repr((*options, spec.additional_properties)).encode(errors="surrogatepass"))
    return digest.digest()
