"""docs/api.md describes the fields and metrics as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from arbora.frontend.api.anthropic import fields as anthropic
from arbora.frontend.api.anthropic.protocol import MessagesRequest
from arbora.frontend.api.openai.fields import INERT
from arbora.frontend.api.openai.protocol import ChatRequest, CompletionRequest
from arbora.frontend.api.openapi.document import STATUSES
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.http.metrics import Metrics
from tiny_model import write_tiny_model

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
KNOWN = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}


def row(title: str) -> set[str]:
    """The names in code in a row of the table of fields."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title}")]
    return {name.partition(":")[0] for code in re.findall("`([^`]*)`", line) for name in code.split()}


def test_the_fields_that_are_served_are_all_listed() -> None:
    served = row("OpenAI's |") | row("vLLM's |") | row("Arbora's |")
    assert served == KNOWN - {"best_of"}


def test_the_fields_of_only_one_endpoint_are_listed() -> None:
    chat, text = set(ChatRequest.__struct_fields__), set(CompletionRequest.__struct_fields__)
    assert row("of these only in chats |") == chat - text
    assert row("of these only in text completions |") == text - chat


@pytest.mark.parametrize("title", ["accepted; they need", "refused with 400"])
def test_the_fields_that_are_not_served_are_known_by_name(title: str) -> None:
    assert row(title) - {"n"} <= {*INERT.fixed, *INERT.without_effect, "best_of"}


def test_the_fields_of_anthropics_api_are_all_listed() -> None:
    served = row("served, Anthropic's |") | row("served, as in chats |")
    assert served == set(MessagesRequest.__struct_fields__)
    accepted = row("accepted; they change no reply |") - {"cache_control"}
    assert accepted == set(anthropic.INERT.without_effect) - {"cache_control"}
    assert row("accepted with one warning in the log |") == set(anthropic.INERT.hints)
    assert row("refused unless empty |") == set(anthropic.INERT.fixed)


def test_the_table_of_errors_has_every_status() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \|", PAGE, re.MULTILINE)
    listed = {int(status) for row in rows for status in row.split(",")}
    assert listed == {*STATUSES, 405, 501}, "405 and 501 are of no operation"
    raised = {
        int(status)
        for folder in ("frontend", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        for status in re.findall(r"\bstatus(?:: int)? ?= ?(\d{3})\b", path.read_text())
    }
    assert {status for status in raised if status >= 400} <= listed


def test_the_counterparts_of_vllms_metrics_exist(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tiny_model(tmp_path / "model"))
    metrics = Metrics([PromptMemo(tokenizer)], {"tiny": tmp_path})
    text = metrics.exposition().decode()
    named = set(re.findall(r"arbora_[a-z_]+", PAGE))
    missing = {name for name in named if name not in text}
    assert missing == {name for name in named if re.search("_(running|waiting|pages|used)$", name)}
