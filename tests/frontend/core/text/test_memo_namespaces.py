"""A conversation that was remembered in one namespace is found in no other."""

from __future__ import annotations

from arbora.frontend.core.text.prompt_memo import PromptMemo
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered_texts import packed, rendered_text, spelled_out, turn
from tokenizers_for_tests import tokenizer_of_kind

QUESTION = turn([("user", "What is it?")]) + "<|im_start|>assistant\n"
NEXT = QUESTION + "the fox<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"


def said(memo: PromptMemo, namespace: str | None) -> bytes:
    """The ids of a next turn, after a reply in tokens that the tokenizer would not choose."""
    tokenizer = tokenizer_of_kind("byte-level")
    reply = spelled_out(tokenizer, "the fox")
    prompt = memo.encode(namespace, QUESTION)
    memo.remember(namespace, QUESTION, prompt, "the fox", reply)
    return prompt + reply


def test_a_reply_is_found_in_its_namespace_alone() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    memo = PromptMemo(tokenizer)
    begun = said(memo, "own")
    afresh = tokenizer.encode(NEXT, add_special_tokens=False)
    assert memo.encode("own", NEXT).startswith(begun)
    for other in ("", "other", None):
        assert memo.encode(other, NEXT) == afresh != memo.encode("own", NEXT)


def test_in_no_namespace_nothing_is_kept() -> None:
    memo = PromptMemo(tokenizer_of_kind("byte-level"))
    said(memo, None)
    assert memo.bytes_used == 0


def test_namespaces_that_are_dropped_leave_nothing() -> None:
    memo = PromptMemo(tokenizer_of_kind("byte-level"))
    kept = said(memo, "kept")
    used = memo.bytes_used
    for name in ("a/", "a/x", "a/y"):
        said(memo, name)
    memo.drop(lambda name: name.startswith("a/"))
    assert memo.bytes_used == used
    assert memo.encode("kept", NEXT).startswith(kept)
    assert not memo.encode("a/x", NEXT).startswith(kept)


def test_all_namespaces_share_the_memory_limit() -> None:
    memo = PromptMemo(tokenizer_of_kind("byte-level"), max_bytes=40_000)
    for number in range(300):
        begun = said(memo, f"n{number}")
        assert memo.bytes_used <= 40_000
    assert memo.encode("n299", NEXT).startswith(begun)
    assert not memo.encode("n0", NEXT).startswith(begun)
    memo.drop(lambda name: True)
    assert memo.bytes_used == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_namespace_is_as_a_memo_of_its_own(data: st.DataObject) -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    together, apart = PromptMemo(tokenizer), {name: PromptMemo(tokenizer) for name in "abc"}
    texts = [""]
    for _ in range(8):
        name = data.draw(st.sampled_from("abc"))
        if data.draw(st.integers(0, 5)) == 0:
            together.drop(lambda each, gone=name: each == gone)  # type: ignore[misc]
            apart[name] = PromptMemo(tokenizer)
        text = data.draw(st.sampled_from(texts)) + data.draw(rendered_text)
        prompt = together.encode(name, text)
        assert prompt == apart[name].encode("", text)
        reply = packed(*data.draw(st.lists(st.integers(5, tokenizer.vocab_size - 1), max_size=6)))
        told = tokenizer.decode(reply, continues_text=True)
        together.remember(name, text, prompt, told, reply)
        apart[name].remember("", text, prompt, told, reply)
        texts += [text, text + told]
    assert together.bytes_used == sum(memo.bytes_used for memo in apart.values())
