"""The labels of the tree's nodes, for each place in a prompt where a node may begin."""

from __future__ import annotations

from pathlib import Path

import arbora
import numpy as np
import pytest
from arbora.frontend.cache_reports.node_labels import NodeLabel, make_label, measure_shared_starts
from arbora.frontend.core.text.tokenizer import Tokenizer

LEAD, HEAD = 32, 24
FIRST = (
    "<|im_start|>user\nMy name is Ada.<|im_end|>\n<|im_start|>assistant\nNice to meet you, Ada!<|im_end|>\n"
)
LONG = "<|im_start|>user\n" + "The oak in Oslo is old. " * 8 + "How old is it?<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(Path(arbora.__file__).parent / "runtime/model/builtin")


def labels(tokenizer: Tokenizer, text: str) -> list[tuple[str, NodeLabel]]:
    """The rest of the text from each token on, and the label of a node that begins there."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    found = []
    for place in range(0, len(tokens), 4):
        label = make_label(tokens[max(0, place - 4 * LEAD) : place], tokens[place:][: 4 * HEAD], tokenizer)
        found.append((tokenizer.decode(tokens[place:], skip_special_tokens=False), label))
    return found


def test_a_node_is_labelled_by_the_message_in_which_it_begins(tokenizer: Tokenizer) -> None:
    for rest, label in labels(tokenizer, FIRST):
        if len(rest) > len("<|im_end|>\n<|im_start|>assistant\nNice to meet you, Ada!<|im_end|>\n"):
            assert label == ("user", "My name is Ada.")
        elif len(rest) > len("<|im_end|>\n"):
            assert label == ("assistant", "Nice to meet you, Ada!")


def test_far_from_the_beginning_of_a_message_the_label_begins_with_a_whole_word(tokenizer: Tokenizer) -> None:
    words = set(LONG.replace("<", " <").split())
    for rest, (role, text) in labels(tokenizer, LONG):
        if len(LONG) - len(rest) > 80 and len(rest) > 40:
            assert text.startswith("…") and text[1:].split()[0] in words
            assert role in ("user", None)


def test_a_text_without_messages_has_no_role(tokenizer: Tokenizer) -> None:
    assert labels(tokenizer, "the cat sat on the mat")[0][1] == (None, "the cat sat on the mat")


def test_siblings_are_labelled_by_what_differs(tokenizer: Tokenizer) -> None:
    """The siblings begin within the end of a message that is the same for both."""
    lead = tokenizer.encode("<|im_start|>system\nWrite calls as a JSON", add_special_tokens=False)
    heads = [
        tokenizer.encode(f" object.\n</tool_call><|im_end|>\n{rest}", add_special_tokens=False)
        for rest in (
            "<|im_start|>user\nWho am I?<|im_end|>",
            "<|im_start|>user\nWhere do I live?<|im_end|>",
            "<|im_start|>assistant\nHello!",
        )
    ]
    shared = measure_shared_starts([(0, head) for head in heads])
    found = [
        make_label(lead + head[:same], head[same:], tokenizer)
        for head, same in zip(heads, shared, strict=True)
    ]
    assert found == [("user", "Who am I?"), ("user", "Where do I live?"), ("assistant", "Hello!")]


def test_only_whole_tokens_that_a_sibling_begins_with_are_shared() -> None:
    def pack(*ids: int) -> bytes:
        return np.array(ids, "<i4").tobytes()

    heads = [
        (None, b""),
        (0, pack(1, 2, 3)),
        (1, pack(1, 2)),
        (0, pack(1, 2, 259)),
        (0, pack(1)),
        (0, pack(5)),
    ]
    assert measure_shared_starts(heads) == [0, 8, 0, 8, 0, 0]
