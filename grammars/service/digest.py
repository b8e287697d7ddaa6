"""Digests that name compiled grammars."""

from __future__ import annotations

import hashlib

from ...runtime.grammar_spec import GrammarSpec


def digest_of(spec: GrammarSpec) -> bytes:
    """A digest of everything on which the compiled grammar depends."""
    enforced = (spec.whitespace, spec.additional_properties, spec.property_order, spec.unenforced)
    options = (spec.kind, *enforced, spec.closing, spec.scope)
    digest = hashlib.sha256(spec.text.encode(errors="surrogatepass"))
    digest.update(b"\0" + repr(options).encode(errors="surrogatepass"))
    return digest.digest()
