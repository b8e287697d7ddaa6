"""Finds mistakes in a schema that is not enforced, so that the client still learns of them."""

from __future__ import annotations

import json
from decimal import Decimal

from ..errors import GrammarError, TooLargeError
from ..schema.read.document import SchemaDocument
from ..schema.read.formula import formulas_in
from ..schema.read.formulas import Formulas
from ..schema.read.keywords import read_document


def first_mistake(text: str) -> GrammarError | None:
    """The error of the first keyword with a meaningless value in any subschema, or of a schema that obviously
    allows no value."""
    formulas = Formulas()
    try:
        document = read_document(json.loads(text, parse_float=Decimal), formulas, unenforced="allow")
        _read(document)
        if document.expanded(document.whole) is formulas.false:
            return GrammarError("the schema allows no value")
    except GrammarError as error:
        return error
    except (TooLargeError, RecursionError):
        return None
    finally:
        formulas.dissolve()
    return None


def _read(document: SchemaDocument) -> None:
    """Reads every subschema once."""
    seen = {document.whole}
    pending = [document.whole]
    while pending:
        for atom in document.expanded(pending.pop()).atoms():
            found = set(formulas_in(atom.fact)) - seen
            seen |= found
            pending += found
