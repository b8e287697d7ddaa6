"""The prompts of a long conversation consist of the tokens of its earlier turns and few new ones."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from arbora.frontend.core.text.prompt_memo import PromptMemo
from chat_templates import CHATML, LLAMA3, MISTRAL, QWEN3
from conversations import BARE, Conversation, chat_tokenizer, common_tokens, random_reply, spell
from tokenizers_for_tests import KINDS

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "bare": BARE}
TURNS = 100
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
each_kind = pytest.mark.parametrize("kind", list(KINDS))
each_template = pytest.mark.parametrize("template", list(TEMPLATES))


class Turn(NamedTuple):
    """`before`: the tokens of the turn before with its reply. `new_text` is empty if they are rewritten,
    else it is what comes after their text."""

    before: bytes
    prompt: bytes
    new_text: str
    characters: int


def hold(kind: str, template: str, seed: int, opening: str = "") -> list[Turn]:
    """A conversation with random replies, `opening` in front of each."""
    tokenizer, chance = chat_tokenizer(kind), random.Random(seed)
    conversation = Conversation(PromptMemo(tokenizer), tokenizer, template)
    turns = []
    conversation.ask("Hello 0")
    for number in range(1, TURNS):
        produced = spell(tokenizer, opening) + random_reply(tokenizer, chance)
        before, said = conversation.prompt + produced, conversation.text
        tokenizer.characters = 0
        returned = conversation.guard(conversation.answer(produced))
        conversation.ask(f"Question {number}\n" + chance.choice(["and é?", " ", "fox  "]))
        spaces = [" " * dropped for dropped in range(1 + tokenizer.rules.leading_spaces)]
        texts = [said + space + returned for space in spaces]
        texts = [text for text in texts if conversation.text.startswith(text)]
        new_text = conversation.text.removeprefix(texts[0]) if texts and returned else ""
        turns.append(Turn(before, conversation.prompt, new_text, tokenizer.characters))
    return turns


@each_kind
@each_template
def test_a_hundred_turns_of_random_text_begin_with_the_tokens_before(kind: str, template: str) -> None:
    kept = [turn for turn in hold(kind, TEMPLATES[template], seed=1) if turn.new_text]
    assert len(kept) > TURNS // 2
    assert all(turn.prompt.startswith(turn.before) for turn in kept)


@each_kind
@each_template
def test_a_turn_tokenizes_only_its_new_text(kind: str, template: str) -> None:
    kept = [turn for turn in hold(kind, TEMPLATES[template], seed=2) if turn.new_text]
    assert [turn.characters for turn in kept] == [len(turn.new_text) for turn in kept]


@pytest.mark.parametrize("kind", ["metaspace", "legacy-llama"])
def test_a_space_that_the_template_puts_before_a_reply_is_the_one_that_was_produced(kind: str) -> None:
    turns = hold(kind, MISTRAL, seed=3, opening=" so")
    kept = [turn for turn in turns if turn.prompt.startswith(turn.before)]
    assert len(kept) > TURNS // 2
    assert kept == [turn for turn in turns if turn.new_text]


@each_kind
def test_conversations_that_take_turns_keep_their_own_tokens(kind: str) -> None:
    """All have the same question and the same reply, in tokens of their own."""
    tokenizer, chance = chat_tokenizer(kind), random.Random(4)
    memo = PromptMemo(tokenizer)
    conversations = [Conversation(memo, tokenizer, CHATML, f"You are number {n}.") for n in range(12)]
    before = [b""] * len(conversations)
    for number in range(6):
        for index, conversation in enumerate(conversations):
            assert conversation.ask(f"Question {number}").startswith(before[index])
        for index, conversation in enumerate(conversations):
            produced = spell(tokenizer, "The weather", chance)
            conversation.answer(produced)
            before[index] = conversation.prompt + produced


def test_both_replies_to_one_prompt_are_remembered() -> None:
    tokenizer, chance = chat_tokenizer("byte-level"), random.Random(5)
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, CHATML)
    prompt = conversation.ask("Hello")
    produced = [random_reply(tokenizer, chance) for _ in range(4)]
    for reply in produced:
        conversation.answer(reply)
    answers = conversation.messages[1:]
    for reply, answer in zip(produced, answers, strict=True):
        conversation.messages[1:] = [answer]
        assert conversation.ask("And?").startswith(prompt + reply)


def test_replies_that_begin_with_the_same_text_keep_their_own_tokens() -> None:
    tokenizer = chat_tokenizer("byte-level")
    conversation = Conversation(PromptMemo(tokenizer), tokenizer, CHATML)
    prompt, mark = conversation.ask("Hello"), tokenizer.encode("<think>", False)
    first = spell(tokenizer, "The fox") + mark + spell(tokenizer, "jumps")
    second = tokenizer.encode("The fox", False) + mark + spell(tokenizer, "runs")
    conversation.answer(first)
    conversation.answer(second)
    for reply, answer in zip((first, second), conversation.messages[1:3], strict=True):
        conversation.messages[1:] = [answer]
        assert conversation.ask("And?").startswith(prompt + reply)


def test_of_replies_with_the_same_text_the_last_is_continued() -> None:
    tokenizer, chance = chat_tokenizer("byte-level"), random.Random(7)
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, CHATML)
    prompt = conversation.ask("Hello")
    replies = [spell(tokenizer, "The quick brown fox", chance) for _ in range(20)]
    used = []
    for reply in replies:
        conversation.messages[1:] = []
        assert conversation.render() == prompt
        conversation.answer(reply)
        used.append(memo.bytes_used)
    assert used[-1] < 2 * used[1]
    assert conversation.ask("And?").startswith(prompt + replies[-1])


def test_a_system_prompt_is_stored_once() -> None:
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer)
    system = "You are helpful. " * 1000
    Conversation(memo, tokenizer, CHATML, system).ask("Hello 0")
    one = memo.bytes_used
    for number in range(1, 20):
        Conversation(memo, tokenizer, CHATML, system).ask(f"Hello {number}")
    assert memo.bytes_used < 2 * one


def test_asking_again_after_an_edit_uses_the_tokens_before_the_edit() -> None:
    tokenizer, chance = chat_tokenizer("byte-level"), random.Random(6)
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, CHATML)
    conversation.ask("Hello")
    reply = random_reply(tokenizer, chance)
    conversation.answer(reply)
    known = conversation.prompt + reply
    asked = conversation.ask("How are you today?")
    conversation.answer(random_reply(tokenizer, chance))
    conversation.messages[-2:] = []
    assert conversation.ask("How old are you?").startswith(known)
    conversation.messages[-1]["content"] = "How are you today?"
    assert conversation.render() == asked
    assert memo.tokens_rewritten == 0


def test_a_reply_that_is_continued_is_continued_from_its_own_tokens() -> None:
    tokenizer = chat_tokenizer("byte-level")
    conversation = Conversation(PromptMemo(tokenizer), tokenizer, CHATML)
    prompt = conversation.ask("Hello")
    first, second = spell(tokenizer, "The quick bro"), spell(tokenizer, "wn fox")
    conversation.answer(first)
    assert conversation.render(add_generation_prompt=False, continue_final_message=True) == prompt + first
    conversation.answer(second)
    whole = "".join(message["content"] for message in conversation.messages[1:])
    conversation.messages[1:] = [{"role": "assistant", "content": whole}]
    assert conversation.ask("And?").startswith(prompt + first + second)


def test_white_space_that_the_template_trims_loses_no_other_tokens() -> None:
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, LLAMA3)
    prompt = conversation.ask("Hello")
    reply = spell(tokenizer, "The quick fox")
    conversation.answer(reply + spell(tokenizer, "\n \n"))
    assert conversation.ask("And?").startswith(prompt + reply)
    assert memo.tokens_rewritten == 3


def test_reasoning_that_the_template_strips_is_counted_as_lost_once() -> None:
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, QWEN3)
    prompt = conversation.ask("Hello")
    first = tokenizer.encode(THOUGHT + "The quick fox", False)
    conversation.answer(first)
    second_prompt = conversation.ask("And?")
    assert common_tokens(prompt + first, second_prompt) == len(prompt) // 4
    assert memo.tokens_rewritten == len(first) // 4
    second = tokenizer.encode("over the lazy dog.", False)
    conversation.answer(second)
    assert conversation.ask("So?").startswith(second_prompt + second)
    assert memo.tokens_rewritten == len(first) // 4


def test_turns_after_a_stripped_reply_are_lost_with_it() -> None:
    """The template keeps reasoning while tools are called, and strips it when the user speaks again."""
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer)
    conversation = Conversation(memo, tokenizer, QWEN3)
    prompt = conversation.ask("Hello")
    conversation.answer(spell(tokenizer, THOUGHT + "The weather."))
    conversation.messages.append({"role": "tool", "content": "sunny"})
    agent_prompt = conversation.render()
    answer = spell(tokenizer, "It is sunny.")
    conversation.answer(answer)
    assert memo.tokens_rewritten == 0
    conversation.ask("And?")
    assert memo.tokens_rewritten == (len(agent_prompt) + len(answer) - len(prompt)) // 4


def test_a_tool_call_is_found_when_the_template_writes_it_as_the_model_did() -> None:
    tokenizer = chat_tokenizer("byte-level")
    conversation = Conversation(PromptMemo(tokenizer), tokenizer, QWEN3)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    conversation.messages.append({"role": "user", "content": "Weather?"})
    prompt = conversation.render(tools=tools)
    produced = (
        tokenizer.encode("<tool_call>", False)
        + spell(tokenizer, '\n{"name": "weather", "arguments": {"city": "Paris"}}\n')
        + tokenizer.encode("</tool_call>", False)
    )
    conversation.answer(produced)
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    conversation.messages[-1] = {"role": "assistant", "content": "", "tool_calls": [call]}
    conversation.messages.append({"role": "tool", "content": "sunny"})
    assert conversation.render(tools=tools).startswith(prompt + produced)
