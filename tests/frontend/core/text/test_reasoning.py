"""Reasoning and answer are separated."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.reasoning import (
    ReasoningFormat,
    detect_reasoning,
)
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.core.tools.reply_parser import ContentDelta, ReasoningDelta, ReplyParser
from chat_templates import DEEPSEEK_R1, LLAMA3, QWEN3
from tokenizers_for_tests import byte_level_json, write_model_folder

THINK = ReasoningFormat("<think>", "</think>", by_template=True)
CASES = {
    "an answer alone": (False, "Hello\n\nthere", "", "Hello\n\nthere"),
    "reasoning first": (False, "<think>\nHm.\n\nSo.\n</think>\n\nHello", "Hm.\n\nSo.", "Hello"),
    "reasoning begun by the prompt": (True, "Hm.\n</think>\n\nHello", "Hm.", "Hello"),
    "empty reasoning": (False, "<think>\n\n</think>\n\nHello", "", "Hello"),
    "spaces before the reasoning": (False, " \n<think>Hm.</think>Hello", "Hm.", "Hello"),
    "reasoning that never ends": (False, "<think>Hm. </thin", "Hm. </thin", ""),
    "a marker further on": (False, "Use <think> and </think>", "", "Use <think> and </think>"),
    "a second marker": (True, "a</think>b</think>c", "a", "b</think>c"),
    "what looks like a marker": (False, "<thinker> hi", "", "<thinker> hi"),
    "the beginning of a marker": (False, "<thi", "", "<thi"),
    "markers in the reasoning": (True, "a < b, </ c </think >d</think>e", "a < b, </ c </think >d", "e"),
}


@pytest.mark.parametrize("name", list(CASES))
def test_reasoning_is_separated_wherever_the_stream_is_split(name: str) -> None:
    inside, text, reasoning, content = CASES[name]
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            parser = ReplyParser(THINK, starts_inside=inside)
            parts = [text[:first], text[first:second], text[second:]]
            deltas = [delta for index, part in enumerate(parts) for delta in parser.push(part, index == 2)]
            assert "".join(each.text for each in deltas if isinstance(each, ReasoningDelta)) == reasoning
            assert "".join(each.text for each in deltas if isinstance(each, ContentDelta)) == content


def test_text_that_is_no_marker_is_sent_at_once() -> None:
    parser = ReplyParser(THINK)
    assert parser.push("<think>Well, ", False) == [ReasoningDelta("Well, ")]
    assert parser.push("yes.</think>So", False) == [ReasoningDelta("yes."), ContentDelta("So")]


def load(folder: Path) -> tuple[ChatTemplate | None, Tokenizer]:
    tokenizer = Tokenizer.load(folder)
    return ChatTemplate.load(folder, tokenizer), tokenizer


def test_the_markers_are_found_in_the_template_or_the_vocabulary(tmp_path: Path) -> None:
    without_marks = byte_level_json().replace("think>", "other>")
    folder = write_model_folder(tmp_path)
    assert detect_reasoning(*load(folder)) == THINK._replace(by_template=False)
    (folder / "tokenizer.json").write_text(without_marks)
    assert detect_reasoning(*load(folder)) is None
    (folder / "chat_template.jinja").write_text(LLAMA3)
    assert detect_reasoning(*load(folder)) is None
    (folder / "chat_template.jinja").write_text(QWEN3)
    assert detect_reasoning(*load(folder)) == THINK


def test_a_prompt_may_begin_the_reasoning_itself(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    user = [{"role": "user", "content": "Hi"}]
    (folder / "chat_template.jinja").write_text(DEEPSEEK_R1)
    template, _ = load(folder)
    assert template is not None and THINK.open_at_end_of(template.render(user))
    (folder / "chat_template.jinja").write_text(QWEN3)
    template, _ = load(folder)
    assert template is not None and not THINK.open_at_end_of(template.render(user))
    without = template.render(user, kwargs={"enable_thinking": False})
    assert not THINK.open_at_end_of(without)
    assert THINK.is_likely_after(template.render(user)) and not THINK.is_likely_after(without)
