"""The built-in model's generated data, chat template, tokenizer and package files."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from train_builtin.batches import encode, make_batches
from train_builtin.chat import make_chat
from train_builtin.conversation import Conversation, render, reply_spans
from train_builtin.documents import NOT_TOLD, make_document_chat
from train_builtin.evaluate import greedy_reply
from train_builtin.extraction import compact, make_extraction
from train_builtin.lexicon import Words, is_held_out
from train_builtin.mixture import (
    STAGES,
    conversations,
    document_of_any_length,
    stage_at,
)
from train_builtin.model import Decoder, Shape, export
from train_builtin.tokenizer import END, PAD

BUILTIN = Path(str(files("arbora.runtime.model.builtin")))


def words(seed: int, held_out: bool = False) -> Words:
    return Words(random.Random(seed), held_out)


def some(count: int = 150) -> list[Conversation]:
    return list(itertools.islice(conversations("test", STAGES[-1]), count))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BUILTIN)


@pytest.fixture(scope="module")
def fast_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))


def test_the_same_seed_gives_the_same_conversations() -> None:
    assert some() == some()


def test_another_seed_gives_other_conversations() -> None:
    assert next(conversations("one", STAGES[1])) != next(conversations("two", STAGES[1]))


def test_a_chat_asks_only_for_facts_the_user_gave_or_the_reply_says_there_are_none() -> None:
    for seed in range(200):
        said = ""
        for turn in make_chat(words(seed)).turns:
            untold = turn.reply.startswith("You have not told me")
            assert turn.fact is None or untold or turn.fact in said
            said += turn.user


def test_an_answer_about_a_document_is_in_the_document_or_a_refusal() -> None:
    for seed in range(200):
        conversation = make_document_chat(words(seed), 20)
        prompt = conversation.system or ""
        for turn in conversation.turns:
            prompt += turn.user
            assert turn.fact is not None
            assert turn.fact == NOT_TOLD or turn.fact in prompt


def test_json_replies_are_valid_and_follow_the_schema_order_without_spaces() -> None:
    for seed in range(200):
        conversation = make_extraction(words(seed))
        assert conversation.schema is not None
        for turn in conversation.turns:
            value = json.loads(turn.reply)
            jsonschema.validate(value, conversation.schema)
            assert turn.reply == compact(value)
            assert list(value) == list(conversation.schema["properties"])


def test_json_strings_and_integers_are_in_the_sentence() -> None:
    for seed in range(100):
        for turn in make_extraction(words(seed)).turns:
            for value in json.loads(turn.reply).values():
                for item in value if isinstance(value, list) else [value]:
                    assert isinstance(item, bool) or str(item) in turn.user


def test_held_out_names_are_never_trained_on() -> None:
    training, held_out = words(1), words(1, held_out=True)
    assert not any(is_held_out(training.invented()) for _ in range(500))
    assert all(is_held_out(held_out.invented()) for _ in range(500))


def test_held_out_documents_name_only_invented_people() -> None:
    stream = words(3, held_out=True)
    assert all(is_held_out(part) for _ in range(100) for part in stream.full_name().split())


def test_the_template_renders_training_text_as_the_trainer_does(tokenizer: PreTrainedTokenizerBase) -> None:
    for conversation in some(40):
        messages = conversation.messages()
        assert tokenizer.apply_chat_template(messages, tokenize=False) == render(messages)


def test_reply_spans_hold_the_replies_and_their_end_marks() -> None:
    for conversation in some(40):
        text, spans = reply_spans(conversation)
        assert [text[start:end] for start, end in spans] == [
            f"{turn.reply}<|im_end|>" for turn in conversation.turns
        ]


WEATHER: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Today's weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
AGENT_CHAT: list[dict[str, object]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            },
            {
                "id": "2",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Rome"}},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
    {"role": "tool", "tool_call_id": "2", "content": "sun"},
    {"role": "assistant", "content": "Rain in Oslo, sun in Rome."},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "You are welcome!"},
]


Tool = dict[str, object] | Callable[..., object]
"""what transformers takes for one"""


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, object]],
    tools: list[Tool] | None = None,
    add_generation_prompt: bool = False,
) -> str:
    text = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("tools", [None, [WEATHER]])
def test_each_turn_begins_with_the_turns_before_it(
    tokenizer: PreTrainedTokenizerBase, tools: list[Tool] | None
) -> None:
    whole = rendered(tokenizer, AGENT_CHAT, tools)
    for end in (2, 5, 7):
        prompt = rendered(tokenizer, AGENT_CHAT[:end], tools, add_generation_prompt=True)
        assert whole.startswith(prompt)


def test_tool_calls_and_results_are_rendered_in_hermes_style(tokenizer: PreTrainedTokenizerBase) -> None:
    text = rendered(tokenizer, AGENT_CHAT[:5], [WEATHER])
    assert "<|im_start|>system\nBe kind.\n\n# Tools" in text
    assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
    assert text.endswith(
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n"
        "<tool_response>\nsun\n</tool_response><|im_end|>\n"
    )


def test_the_template_refuses_inputs_that_the_model_cannot_read(tokenizer: PreTrainedTokenizerBase) -> None:
    picture: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    ]
    with pytest.raises(Exception, match="text only"):
        rendered(tokenizer, picture)


@pytest.mark.parametrize("text", ["Grüße, 世界! 🙂", "\x00\x7f \t\n\n  x", "It's  TWO\r\nlines"])
def test_any_text_survives_the_tokenizer(fast_tokenizer: Tokenizer, text: str) -> None:
    assert fast_tokenizer.decode(fast_tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_name_has_the_same_tokens_at_every_position(fast_tokenizer: Tokenizer) -> None:
    name = fast_tokenizer.encode("Varkelou").ids
    for around in ("I am Varkelou.", '{"name":"Varkelou"}', "Varkelou, hello"):
        ids = fast_tokenizer.encode(around).ids
        assert any(ids[at : at + len(name)] == name for at in range(len(ids)))


def test_only_replies_and_a_sample_of_the_prompt_are_trained_on(fast_tokenizer: Tokenizer) -> None:
    batches = make_batches("test", fast_tokenizer, STAGES[-1], tokens=2048)
    for batch in batches:
        padding = batch.tokens[:, 1:] == PAD
        assert not batch.weights[padding].any()
        assert (batch.weights[batch.tokens[:, 1:] == END] > 0).any()
    example = encode(some(1)[0], fast_tokenizer)
    assert any(example.is_reply) and not example.is_reply[0]


def test_the_same_seed_gives_the_same_batches(fast_tokenizer: Tokenizer) -> None:
    first, second = (make_batches("test", fast_tokenizer, STAGES[1], tokens=2048) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.weights, other.weights)


def test_the_run_begins_with_the_first_stage_and_ends_with_the_last() -> None:
    assert (stage_at(0.0), stage_at(1.0)) == (STAGES[0], STAGES[-1])


def test_prompts_of_the_held_out_documents_reach_but_seldom_pass_1024_tokens(
    fast_tokenizer: Tokenizer,
) -> None:
    stream = words(5, held_out=True)
    lengths = [
        len(fast_tokenizer.encode(render(document_of_any_length(stream).messages())).ids) for _ in range(200)
    ]
    assert max(lengths) > 700
    assert sum(length > 1024 for length in lengths) < 10


def test_transformers_and_the_trainer_compute_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = Shape(
        vocabulary=64, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=48, context=32
    )
    model = Decoder(shape)
    export(model.state_dict(), shape, tmp_path, PAD, END)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 64, (2, 12))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours = model.logits(model(tokens)).float()
    with torch.no_grad():
        assert torch.allclose(ours, oracle(tokens).logits, atol=0.01)


def test_the_model_in_the_package_is_whole_and_below_eight_megabytes() -> None:
    names = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    present = {path.name: path.stat().st_size for path in BUILTIN.iterdir() if path.is_file()}
    assert names <= present.keys()
    assert sum(present.values()) <= 8_000_000
    assert json.loads((BUILTIN / "config.json").read_text())["max_position_embeddings"] >= 4096


def test_the_built_in_model_knows_its_name(tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(BUILTIN, dtype=torch.float32)
    reply = greedy_reply([{"role": "user", "content": "Who are you?"}], model, tokenizer)
    assert reply == "I am Arbora's small built-in demonstration model."
