"""Every causal language model type of transformers: served with equal logits, or refused for the reason in
docs/models.md.

After a change of the types or reasons: ARBORA_WRITE_DOCS=1 .venv/bin/pytest THIS_FILE writes the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.chunk_check import check_chunks
from arbora.runtime.model.interface.model import Model
from arbora.runtime.model.transformers_models.architecture import TransformersArchitecture
from arbora.runtime.model.weight_formats import Checkpoint, ProjectionLoader, load_weight_formats
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version
from paged_rows import PagedRows, differences
from tiny_models import TYPES, tiny_config, tiny_model

DOCS = Path(__file__).parents[4] / "docs" / "models.md"
NOT_SERVED = ", so it is not served. docs/models.md lists what is."
BEGIN, END = "<!-- types: begin -->\n", "<!-- types: end -->\n"
SERVED = "served"
TOLERANCE = 5e-5
"""of the largest logit; the sums of chunks have another order than those of the whole prompt"""
CPU = torch.device("cpu")


def read_table() -> dict[str, str]:
    """Each type's outcome in docs/models.md."""
    table = DOCS.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:] if line.startswith("|")]
    return {kind.strip(" `"): outcome.strip() for kind, outcome in rows}


def find_outcome(model_type: str, directory: Path) -> str:
    try:
        config = tiny_config(model_type)
        config.save_pretrained(directory)
    except (TypeError, ValueError, KeyError, AttributeError, StrictDataclassError):
        return "not tried: its config has no valid defaults"
    try:
        architecture = TransformersArchitecture.open(directory)
    except ConfigError as error:
        return str(error).split(") ", 1)[-1].split("\n")[0].removesuffix(NOT_SERVED).rstrip(".")
    reference = tiny_model(config)
    reference.save_pretrained(directory)
    config.save_pretrained(directory)  # some models save only a part of it
    try:
        model = load(architecture, directory)
    except ConfigError as error:
        return str(error).split(": ", 1)[-1].rstrip(".")
    largest = max(differences(reference, PagedRows(model)))
    return SERVED if largest < TOLERANCE else f"computed wrongly: {largest:.1e}"


def load(architecture: TransformersArchitecture, directory: Path) -> Model:
    checkpoint = Checkpoint(directory)
    choose = load_weight_formats(directory, checkpoint.names).choose
    architecture.check(checkpoint, choose)
    loader = ProjectionLoader(checkpoint, choose, torch.float32, CPU, batch_invariant=False)
    model = architecture.load(loader, lambda text: None)
    check_chunks(model, CPU)
    return model


@pytest.mark.parametrize("model_type", TYPES)
def test_a_type_is_served_with_equal_logits_or_refused_as_documented(model_type: str, tmp_path: Path) -> None:
    found = find_outcome(model_type, tmp_path)
    if os.environ.get("ARBORA_WRITE_DOCS"):
        write(model_type, found)
    expected = read_table()
    if model_type not in expected and not is_documented_version():
        assert not found.startswith("computed wrongly")
        return
    assert found == expected[model_type]


def is_documented_version() -> bool:
    """Whether the table was written with the installed version of transformers."""
    version = Version(transformers.__version__)
    return f"transformers {version.major}.{version.minor} " in DOCS.read_text()


def write(model_type: str, found: str) -> None:
    before, rest = DOCS.read_text().split(BEGIN)
    after = rest.split(END)[1]
    rows = read_table() | {model_type: found}
    lines = [f"| `{kind}` | {outcome} |\n" for kind, outcome in sorted(rows.items())]
    DOCS.write_text(f"{before}{BEGIN}| type | outcome |\n| --- | --- |\n{''.join(lines)}{END}{after}")
