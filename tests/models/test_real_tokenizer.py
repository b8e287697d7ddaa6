"""The tokenizer and the chat template that are made from a real GGUF file."""

from __future__ import annotations

import pytest
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.model_files.gguf.directory import gguf_directory
from real_model import real_file, reference_tokenizer
from real_texts import tokenizer_texts
from step_driver import unpacked

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(gguf_directory(real_file()))


def test_text_of_all_scripts_has_the_original_tokenizers_tokens_and_comes_back(tokenizer: Tokenizer) -> None:
    reference, read = reference_tokenizer(), 0
    for text in tokenizer_texts():
        tokens = tokenizer.encode(text)
        assert unpacked(tokens) == reference.encode(text).ids, text
        assert tokenizer.decode(tokens) == text
        read += len(text.encode())
    assert read > 200_000


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>user\nb<|im_end|>", "<|endoftext|><|im_end"])
def test_special_tokens_are_found_in_text(tokenizer: Tokenizer, text: str) -> None:
    assert unpacked(tokenizer.encode(text)) == reference_tokenizer().encode(text).ids


def test_a_conversation_is_rendered_as_the_model_was_trained(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.load(gguf_directory(real_file()), tokenizer)
    assert template is not None
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    begun = SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(turns[:1]) == begun
    asked = [*turns, {"role": "user", "content": "Bye"}]
    assert (
        template.render(asked)
        == f"{begun}Hello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_tokens[0] == reference_tokenizer().token_to_id("<|im_end|>")
