"""A server with two models in a browser: each chat has its own. `make test-browser` runs this."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from arbora.runtime.config import BUILTIN_MODEL
from page_actions import chat, open_server_view, wait_for_replies
from playwright.sync_api import Browser, Page, expect
from served import Served, serve
from watched_page import watched


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    flags = ("--also-serve", f"second={BUILTIN_MODEL}", "--keep-alive", "-1", "--kv-memory", "16MiB")
    with serve(BUILTIN_MODEL, *flags) as server:
        yield server


@pytest.fixture
def page(browser: Browser, pair: Served, faults: list[str]) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = watched(context.new_page(), faults)
        page.goto(pair.url)
        yield page
    assert faults == []


def test_a_person_chooses_a_model_and_the_first_message_loads_it(page: Page, pair: Served) -> None:
    start, tree = page.locator(".start"), page.locator("#chat-tree")
    expect(page.locator("#model option")).to_have_text([pair.model, "second"])
    expect(start).to_contain_text("4,096 tokens of context")
    page.select_option("#model", "second")
    expect(start).to_contain_text("not loaded: your first message loads it")
    page.get_by_role("link", name="Server").click()
    expect(page.locator("#tables")).to_contain_text("not loaded, so it has no cache")
    page.select_option("#model", pair.model)
    expect(page.locator("#tiles")).to_contain_text("KV cache")
    expect(page.locator("#facts")).to_contain_text(f"{pair.model} (ready), second (unloaded)")
    page.get_by_role("link", name="Chat").click()
    page.select_option("#model", "second")
    chat(page, "My name is Ada.")
    expect(tree.locator(".path-totals")).to_contain_text("of this chat are in the cache")
    expect(tree.locator(".minimap svg")).to_have_attribute("aria-label", re.compile("of its .* boxes"))
    models = {each["name"]: each["state"] for each in pair.http.get("/server").json()["models"]}
    assert models == {pair.model: "ready", "second": "ready"}
    second, first = (
        pair.http.get("/cache/tree", params={"model": model}).json()["nodes"]
        for model in ("second", pair.model)
    )
    assert any("Ada" in (node["text"] or "") for node in second)
    assert not any("Ada" in (node["text"] or "") for node in first)


def test_each_chat_keeps_its_model_and_the_server_view_shows_the_cache_of_the_chosen_one(
    page: Page, pair: Served
) -> None:
    page.select_option("#model", "second")
    chat(page, "My name is Bob.")
    page.click("#new-chat")
    page.select_option("#model", pair.model)
    chat(page, "My name is Eve.")
    page.locator("#chat-items").get_by_text("My name is Bob.").click()
    wait_for_replies(page, 1)
    expect(page.locator("#model")).to_have_value("second")
    open_server_view(page)
    expect(page.locator("#server-tree")).to_contain_text("Bob")
    page.select_option("#model", pair.model)
    expect(page.locator("#server-tree")).to_contain_text("Eve")
    expect(page.locator("#server-tree")).not_to_contain_text("Bob")
