"""POST /v1/messages with Anthropic's client and a scripted scheduler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pydantic
import pytest
import pytest_asyncio
from anthropic_world import HELLO, TOOLS, AnthropicWorld, anthropic_world, called, turn_of
from arbora.runtime.messages import LeftOutKeyword
from fake_scheduler import unpacked
from http_world import MODEL, http_world, last_generate, last_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT: Any = {"type": "json_schema", "schema": SCHEMA}
CALL = called("weather", '{"city": "Paris"}')
REASONED = "<think>\nHm.\n</think>\n\nFine."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as world:
        yield world


async def test_a_message_has_the_shape_that_anthropic_documents(world: AnthropicWorld) -> None:
    world.says("Hello, how are you?")
    body = (await world.post(messages=HELLO, max_tokens=50)).json()
    assert body["id"].startswith("msg_") and "-" not in body["id"]
    usage = body.pop("usage")
    assert body == {
        "id": body["id"],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello, how are you?"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert usage["output_tokens"] == len(world.ids("Hello, how are you?")) + 1
    assert usage["service_tier"] == "standard"


async def test_sampling_fields_reach_the_scheduler(world: AnthropicWorld) -> None:
    extra = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "min_p": 0.1, "ignore_eos": True}
    await world.create(max_tokens=9, extra_body=extra)
    sampling = last_generate(world.http_world).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.9)
    assert (sampling.top_k, sampling.seed, sampling.min_p, sampling.ignore_eos) == (7, 3, 0.1, True)


async def test_a_stop_sequence_ends_the_reply_and_is_named(world: AnthropicWorld) -> None:
    world.says("the cat sat on the mat")
    message = await world.create(stop_sequences=["dog", " sat"])
    assert message.content[0].text == "the cat"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " sat")


async def test_a_limit_of_tokens_is_told_from_the_end_of_the_context(world: AnthropicWorld) -> None:
    world.says("the cat sat on the mat " * 400)
    assert (await world.create(max_tokens=5)).stop_reason == "max_tokens"
    most = world.http_world.context_length
    assert (await world.create(max_tokens=most)).stop_reason == "model_context_window_exceeded"


async def test_the_counts_of_input_tokens_are_disjoint_and_add_up(world: AnthropicWorld) -> None:
    world.running.cached_tokens = 20
    try:
        usage = (await world.create(messages=[{"role": "user", "content": "the cat sat " * 20}])).usage
        total = len(unpacked(last_generate(world.http_world).prompt))
    finally:
        world.running.cached_tokens = 0
    assert usage.cache_read_input_tokens == 20
    assert usage.cache_creation_input_tokens == total - 20
    assert usage.input_tokens == 0


async def test_a_prompt_that_is_known_but_for_its_last_token_creates_nothing(world: AnthropicWorld) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    total = (await world.client.messages.count_tokens(model=MODEL, messages=messages)).input_tokens
    world.running.cached_tokens = total - 1
    try:
        usage = (await world.create(messages=messages, max_tokens=1)).usage
    finally:
        world.running.cached_tokens = 0
    assert (usage.input_tokens, usage.cache_creation_input_tokens) == (1, 0)


async def test_a_request_without_the_cache_creates_nothing_in_it(world: AnthropicWorld) -> None:
    usage = (await world.create(extra_body={"cache_prompt": False})).usage
    assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)
    assert usage.input_tokens == len(unpacked(last_generate(world.http_world).prompt))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", "tools": TOOLS},
        {"messages": [*HELLO, {"role": "assistant", "content": "Fine"}]},
        {"thinking": {"type": "disabled"}},
    ],
    ids=str,
)
async def test_the_counted_tokens_are_those_of_the_prompt(world: AnthropicWorld, fields: Any) -> None:
    fields = {"messages": HELLO, **fields}
    counted = await world.client.messages.count_tokens(model=MODEL, **fields)
    await world.create(**fields)
    assert counted.input_tokens == len(unpacked(last_generate(world.http_world).prompt))


async def test_no_tokens_at_all_only_fill_the_cache(world: AnthropicWorld) -> None:
    message = await world.create(max_tokens=0)
    assert (message.content, message.stop_reason) == ([], "max_tokens")


async def test_a_call_is_a_block_with_its_input(world: AnthropicWorld) -> None:
    world.says("I look. " + CALL)
    message = await world.create(tools=TOOLS)
    text, call = message.content
    assert text.text == "I look."
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Paris"})
    assert call.id.startswith("toolu_")
    assert message.stop_reason == "tool_use"


async def test_a_call_that_the_limit_cuts_has_its_complete_members(world: AnthropicWorld) -> None:
    text = called("weather", '{"city": "Paris", "days": [1, 2, 3]}')
    world.says(text)
    cut = len(world.ids(text.partition("2,")[0]))
    message = await world.create(tools=TOOLS, tool_choice={"type": "any"}, max_tokens=cut)
    assert (message.content[0].input, message.stop_reason) == ({"city": "Paris"}, "max_tokens")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, ("weather", "clock")),
        ({"type": "any", "disable_parallel_tool_use": True}, ("weather", "clock")),
        ({"type": "tool", "name": "clock"}, ("clock",)),
    ],
    ids=str,
)
async def test_a_forced_call_is_constrained_to_the_tools(
    world: AnthropicWorld, choice: Any, names: tuple[str, ...]
) -> None:
    world.says(called("clock", "{}"))
    message = await world.create(tools=TOOLS, tool_choice=choice)
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None and grammar.kind == "structural_tag"
    assert tuple(name for name in ("weather", "clock") if name in grammar.text) == names
    assert (message.content[0].name, message.content[0].input) == ("clock", {})


async def test_parallel_calls_can_be_disabled(world: AnthropicWorld) -> None:
    world.says(CALL)
    texts = []
    for disabled in (False, True):
        choice = {"type": "any", "disable_parallel_tool_use": disabled}
        await world.create(tools=TOOLS, tool_choice=choice)
        texts.append(last_generate(world.http_world).grammar.text)  # type: ignore[union-attr]
    assert texts[0] != texts[1]


async def test_without_a_choice_of_tools_markup_is_text(world: AnthropicWorld) -> None:
    world.says(CALL)
    message = await world.create(tools=TOOLS, tool_choice={"type": "none"})
    assert ([block.type for block in message.content], message.content[0].text) == (["text"], CALL)


async def test_the_turn_after_a_call_repeats_the_tokens_that_were_sampled(world: AnthropicWorld) -> None:
    letters = [token for letter in CALL for token in world.ids(letter)]
    world.http_world.script = lambda request: letters
    message = await world.create(tools=TOOLS)
    first = unpacked(last_generate(world.http_world).prompt)
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "Sun."}
    turns = [*HELLO, turn_of(message), {"role": "user", "content": [result]}]
    await world.create(messages=turns, tools=TOOLS)
    second = unpacked(last_generate(world.http_world).prompt)
    assert second[: len(first) + len(letters)] == first + letters


@pytest.mark.parametrize(
    "fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}], ids=["config", "older"]
)
async def test_a_schema_constrains_the_reply(world: AnthropicWorld, fields: Any) -> None:
    world.says('{"name":"Ada"}')
    message = await world.create(extra_body=fields)
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None
    assert json.loads(grammar.text)["content"]["json_schema"] == SCHEMA  # behind reasoning that may come
    assert grammar.param.endswith(".schema")
    assert json.loads(message.content[0].text) == {"name": "Ada"}


async def test_the_client_parses_a_reply_of_its_type(world: AnthropicWorld) -> None:
    class Person(pydantic.BaseModel):
        name: str

    world.says('{"name":"Ada"}')
    message = await world.client.messages.parse(
        model=MODEL, max_tokens=50, messages=HELLO, output_format=Person
    )
    assert message.parsed_output == Person(name="Ada")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"regex": "[a-z]+"}, "regex"), ({"choice": ["a", "b"]}, "choice"), ({"grammar": "x"}, "grammar")],
)
async def test_arboras_own_constraints_work_too(world: AnthropicWorld, fields: Any, kind: str) -> None:
    await world.create(extra_body=fields)
    assert last_generate(world.http_world).grammar.kind == kind  # type: ignore[union-attr]


async def test_keywords_that_are_not_enforced_are_named(world: AnthropicWorld) -> None:
    world.running.left_out = [LeftOutKeyword("format", "#/format")]
    try:
        message = await world.create(extra_body={"output_format": FORMAT})
    finally:
        world.running.left_out = ()
    assert message.model_extra["unenforced"] == [{"keyword": "format", "path": "#/format"}]


@pytest.mark.parametrize(
    ("thinking", "blocks"),
    [
        (None, [("thinking", "Hm."), ("text", "Fine.")]),
        ({"type": "enabled", "budget_tokens": 1024}, [("thinking", "Hm."), ("text", "Fine.")]),
        ({"type": "adaptive", "display": "omitted"}, [("thinking", ""), ("text", "Fine.")]),
        ({"type": "disabled"}, [("text", "Fine.")]),
    ],
    ids=str,
)
async def test_thinking_is_shown_as_asked(world: AnthropicWorld, thinking: Any, blocks: Any) -> None:
    world.says(REASONED)
    fields = {} if thinking is None else {"thinking": thinking}
    message = await world.create(max_tokens=1025, **fields)
    assert [(block.type, getattr(block, block.type)) for block in message.content] == blocks
    assert all(block.signature for block in message.content if block.type == "thinking")
    details = message.usage.output_tokens_details
    assert 0 < details.thinking_tokens < message.usage.output_tokens


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_that_is_sent_back_reaches_the_template(world: AnthropicWorld, display: str) -> None:
    world.says(REASONED)
    message = await world.create(thinking={"type": "adaptive", "display": display})
    await world.create(messages=[*HELLO, turn_of(message), *HELLO])
    prompt = last_prompt(world.http_world)
    assert REASONED in prompt


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_a_loop_of_tools_repeats_the_tokens_of_its_thinking(
    world: AnthropicWorld, display: str
) -> None:
    letters = [token for letter in f"<think>\nHm.\n</think>\n\n{CALL}" for token in world.ids(letter)]
    world.http_world.script = lambda request: letters
    fields: Any = {"tools": TOOLS, "thinking": {"type": "adaptive", "display": display}}
    message = await world.create(**fields)
    first = unpacked(last_generate(world.http_world).prompt)
    thought, call = message.content
    assert thought.thinking == ("Hm." if display == "summarized" else "")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun."}
    await world.create(messages=[*HELLO, turn_of(message), {"role": "user", "content": [result]}], **fields)
    second = unpacked(last_generate(world.http_world).prompt)
    assert second[: len(first) + len(letters)] == first + letters


async def test_an_assistants_last_message_is_continued(world: AnthropicWorld) -> None:
    world.says(" sat")
    message = await world.create(messages=[*HELLO, {"role": "assistant", "content": "the cat"}])
    prompt = last_prompt(world.http_world)
    assert prompt.endswith("the cat")
    assert message.content[0].text == " sat"


async def test_users_of_one_key_are_tenants() -> None:
    async with http_world() as world:
        for user in ("ada", "bob", None):
            body = {"max_tokens": 1, "messages": HELLO, "metadata": {"user_id": user}}
            assert (await world.http.post("/v1/messages", json=body)).status_code == 200
            tenants = {request.tenant for request in world.running.of_kind(type(last_generate(world)))}
    assert len(tenants) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"service_tier": "standard_only"},
        {"fallbacks": "default"},
        {"mcp_servers": []},
        {"container": None},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}},
    ],
    ids=str,
)
async def test_fields_that_change_no_reply_are_accepted(world: AnthropicWorld, fields: Any) -> None:
    message = await world.create(extra_body=fields)
    assert message.stop_reason == "end_turn"
    if "context_management" in fields:
        assert message.model_extra["context_management"] == {"applied_edits": []}


async def test_a_missed_cache_is_not_diagnosed_yet(world: AnthropicWorld) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "diagnostics": {"previous_message_id": "msg_1"}}
    diagnostics = (await world.post(**body)).json()["diagnostics"]
    assert diagnostics == {"cache_miss_reason": {"type": "unavailable"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a" * 2000]}, "stop_sequences"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop": ["a"]}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"formats": FORMAT}}, "output_config.formats"),
        ({"output_config": {"schema": SCHEMA}}, "output_config.schema"),
        ({"output_format": {**FORMAT, "schema": 5}}, "output_format.schema"),
        ({"output_format": FORMAT, "regex": "a"}, "regex"),
        ({"output_format": FORMAT, "tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "parameters": SCHEMA}]}, "tools[0].parameters"),
        ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{**TOOLS[0], "allowed_callers": ["code_execution"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "thinking.budget_tokens"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
            "context_management.edits[0]",
        ),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management.edits[0].type"),
        ({"container": "c_1"}, "container"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [], "system": "Be brief."}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
    ids=str,
)
async def test_a_field_that_cannot_be_served_is_refused_by_name(
    world: AnthropicWorld, fields: Any, param: str
) -> None:
    answer = await world.post(**{"max_tokens": 50, "messages": HELLO, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"]["param"] == param
    assert param.rpartition(".")[2].partition("[")[0] in error["message"]


@pytest.mark.parametrize("name", ["max_tokens", "messages"])
async def test_a_required_field_is_asked_for(world: AnthropicWorld, name: str) -> None:
    body = {"max_tokens": 50, "messages": HELLO}
    del body[name]
    error = (await world.post(**body)).json()["error"]
    assert (error["details"]["param"], error["details"]["error_code"]) == (name, "missing_field")


async def test_the_clients_errors_have_their_types(world: AnthropicWorld) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await world.create(max_tokens=-1)
    with pytest.raises(anthropic.NotFoundError) as caught:
        await world.create(model="claude")
    assert caught.value.request_id == caught.value.body["request_id"]
