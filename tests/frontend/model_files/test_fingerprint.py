"""`system_fingerprint`: equal where a seed gives the same reply."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from arbora.frontend.core.service import fingerprint
from arbora.runtime.config import ServeConfig


def test_the_fingerprint_changes_with_what_changes_replies() -> None:
    config = ServeConfig(model=Path("m"), served_model_name="m")
    changes: list[dict[str, Any]] = [
        {"dtype": "float32"},
        {"kv_dtype": "int8"},
        {"quantize": "int4"},
        {"deterministic": True},
        {"chat_template": "{{ messages }}"},
        {"model": Path("other")},
    ]
    prints = [fingerprint(replace(config, **change)) for change in [{}, *changes]]
    assert len(set(prints)) == len(prints)
    assert fingerprint(replace(config, port=1)) == prints[0]
