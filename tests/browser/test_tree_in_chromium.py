"""The prefix tree in a browser. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import arbora
import pytest
from page_actions import chat, open_server_view, say, settle, wait_for_replies
from playwright.sync_api import Browser, Locator, Page, expect
from served import serve
from watched_page import watched

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"


def rows(page: Page) -> Locator:
    return page.locator("#chat-tree .part")


def boxes(page: Page) -> Locator:
    return page.locator("#server-tree [role=treeitem]")


# The path of the chat


def test_each_message_of_the_chat_has_a_row_with_its_cached_tokens(page: Page) -> None:
    expect(page.locator(".path-totals")).to_contain_text("Each message of the chat appears here")
    settle(page, temperature="0", system="You are a kind helper of Nora.")
    chat(page, "My name is Nora.")
    expect(rows(page).locator(".who")).to_have_text(["system", "user", "assistant", "template"])
    expect(rows(page).locator(".words").nth(1)).to_have_text("My name is Nora.")
    expect(rows(page).first).to_contain_text(re.compile(r"(\d+) of \1 tokens cached"))
    expect(rows(page).last).to_have_text(
        re.compile(r"templateBeginning of the next reply\d+ tokens, computed with your next message")
    )
    expect(rows(page).last.locator(".bar")).to_have_count(0)
    expect(page.locator(".path-totals")).to_have_text(
        re.compile(r"\d+ of \d+ tokens of this chat are in the cache; the next turn computes about \d+ and")
    )
    page.click("#new-chat")
    expect(rows(page)).to_have_count(0)
    page.locator("#chat-items .open").click()
    expect(rows(page)).to_have_count(4)


def test_rows_say_how_many_branches_share_them_and_where_the_chat_branches(page: Page) -> None:
    settle(
        page, temperature="0", system="A prompt that two branches share, with more tokens than a page has."
    )
    chat(page, "First question?")
    expect(rows(page)).to_have_count(4)
    expect(rows(page).first).not_to_contain_text("shared")
    page.press("#message", "ArrowUp")
    page.fill("#message", "Second question?")
    page.keyboard.press("Enter")
    expect(page.locator(".branches")).to_have_count(1)
    expect(rows(page).nth(1).locator(".words")).to_have_text("Second question?")
    expect(rows(page).first).to_contain_text("shared by 1")
    expect(rows(page).nth(1)).not_to_contain_text("shared")
    expect(page.locator("#chat-tree .branch")).to_have_text(["‹ 2/2 ›"])
    page.get_by_role("button", name="Previous branch").click()
    expect(rows(page).nth(1).locator(".words")).to_have_text("First question?")
    expect(page.locator("#chat-tree .branch")).to_have_text(["‹ 1/2 ›"])


def test_explanations_are_asked_for_when_a_reply_ends_or_at_most_once_in_two_seconds(page: Page) -> None:
    asked: list[float] = []
    page.on("request", lambda each: asked.append(monotonic()) if "cache/explain" in each.url else None)
    chat(page, "Hello", "And again", "And again")
    expect(rows(page)).to_have_count(7)
    page.wait_for_timeout(5000)
    assert 1 <= len(asked) <= 6  # one when a message is sent, one when its reply ends
    asked.clear()
    for _ in range(8):
        settle(page, system=str(monotonic()))
    page.wait_for_timeout(5000)
    assert asked and all(later - earlier > 1.9 for earlier, later in pairwise(asked))


def test_the_numbers_of_an_earlier_turn_are_marked_and_soon_replaced(page: Page) -> None:
    chat(page, "Hello")
    expect(rows(page)).to_have_count(3)
    tree = page.locator("#chat-tree .tree")
    expect(tree).to_have_attribute("aria-busy", "false")
    page.evaluate("""() => {
      const ask = window.fetch;
      window.fetch = async (...given) => {
        if (given[0].includes("cache/explain")) await new Promise((resolve) => setTimeout(resolve, 500));
        return ask(...given);
      };
    }""")
    say(page, "And again")
    wait_for_replies(page, 2)
    ended = monotonic()
    expect(tree).to_have_attribute("aria-busy", "true")
    assert rows(page).count() == 3
    expect(tree).to_have_attribute("aria-busy", "false")
    assert rows(page).count() == 5
    assert monotonic() - ended < 2  # seconds: the page does not wait for its next refresh


def test_nothing_is_asked_twice_for_the_same_chat(page: Page) -> None:
    chat(page, "A chat that stays as it is.")
    expect(rows(page)).to_have_count(3)
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Escape")
    page.wait_for_timeout(2500)
    settle(page, temperature="0.5", seed="7")
    page.wait_for_timeout(2500)
    assert [url for url in asked if "/cache/explain" in url] == []
    page.locator(".prompt summary").click()
    expect(page.locator(".rendered")).to_be_visible()
    expect(page.locator(".causes li")).to_have_text(re.compile(r"^\d+ computed: in no earlier prompt$"))
    page.locator(".prompt summary").click()
    page.locator(".prompt summary").click()
    expect(page.locator(".rendered")).to_be_visible()
    assert sum(url.endswith("/tokenize") for url in asked) == 1
    trees: list[float] = []
    page.on("request", lambda each: trees.append(monotonic()) if "cache/tree" in each.url else None)
    say(page, "And again")
    wait_for_replies(page, 2)
    page.wait_for_timeout(1000)
    assert all(later - earlier > 0.01 for earlier, later in pairwise(trees))


def test_a_refusal_of_the_explanation_is_shown_in_its_place(page: Page, faults: list[str]) -> None:
    refusal = json.dumps({"error": {"message": "The template can't render this."}})
    page.route("**/cache/explain", lambda route: route.fulfill(status=400, body=refusal))
    chat(page, "Hello")
    expect(page.locator(".path-totals")).to_have_text("The template can't render this.")
    expect(page.locator("#health")).to_be_empty()
    faults.clear()  # Chromium logs each answer with an error status


def test_the_small_tree_marks_the_path_and_leads_to_the_whole_one(page: Page) -> None:
    chat(page, "A small tree beside the chat, please.")
    small = page.locator(".minimap svg")
    expect(small).to_have_attribute("aria-label", re.compile("[1-9] of its .* on the path of this chat"))
    small.locator(".on-path").last.click()
    expect(boxes(page).locator("xpath=self::*[@aria-selected='true']")).to_have_count(1)
    expect(page.locator("#server-tree .node-text")).to_contain_text("A small tree beside")
    page.get_by_role("link", name="Chat").click()
    page.get_by_role("button", name="Open in the tree").click()
    expect(page.locator("#server-tree .node-text")).to_contain_text("A small tree beside")


# The tree


def test_boxes_are_named_by_the_role_and_the_first_words_of_their_message(page: Page) -> None:
    settle(page, temperature="0")
    chat(page, "Boxes have names like this one.")
    open_server_view(page)
    box = page.locator("#server-tree").get_by_role("treeitem", name="user: Boxes have names like this one.")
    expect(box).to_have_count(1)
    box.click()
    expect(page.locator("#server-tree .node-text")).to_have_text(re.compile("Boxes.*assistant", re.DOTALL))


def test_the_tree_is_used_with_the_keyboard(page: Page) -> None:
    settle(page, temperature="0")
    chat(page, "Keys lead to a box.", "What is my name?")
    page.keyboard.press("ArrowUp")
    page.fill("#message", "Who am I?")
    page.keyboard.press("Enter")
    expect(page.locator(".branches")).to_have_count(1)
    wait_for_replies(page, 2)
    open_server_view(page)
    tree, crumbs = page.locator("#server-tree"), page.locator("#server-tree .crumbs")
    shared = tree.get_by_role("treeitem", name="user: Keys lead to a box.")
    shared.focus()
    page.keyboard.press("Enter")
    expect(shared).to_have_attribute("aria-level", "1")
    expect(shared).to_have_attribute("aria-selected", "true")
    expect(crumbs).to_have_text("Whole treeuser: Keys lead to a box.")
    expect(tree.locator(".node-text")).to_contain_text("Keys lead to a box.")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(tree.locator('[aria-selected="true"]')).to_have_attribute("aria-level", "2")
    page.keyboard.press("Escape")
    expect(tree.locator("[role=treeitem].root").first).to_be_visible()
    shared.click()
    crumbs.get_by_role("button", name="Whole tree").click()
    expect(shared).to_have_attribute("aria-level", "2")
    expect(shared).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_evicted_boxes_say_in_which_tier_their_pages_are(
    browser: Browser, tmp_path: Path, faults: list[str], scheme: Any
) -> None:
    """The cache has 32 pages and host memory 15; of each prompt's pages 11 are not shared."""
    small = ("--max-model-len", "512", "--max-running", "1", "--kv-memory", "2MiB", "--host-cache", "1MB")
    story = "The fox and the crow met by the river, and this is what they said to each other. " * 6
    with (
        serve(BUILTIN, *small, "--disk-cache", str(tmp_path)) as server,
        browser.new_context(color_scheme=scheme) as context,
    ):
        for number in range(8):
            server.client.completions.create(model=server.model, prompt=f"{number} {story}", max_tokens=4)
        page = watched(context.new_page(), faults)
        page.goto(server.url)
        open_server_view(page)
        tree = page.locator("#server-tree")
        expect(tree.locator(".legend")).to_contain_text(
            "evicted, in host memoryevicted, on diskevicted, in neither"
        )
        expect(tree.locator(".box.in-host").first).to_be_visible()
        box = tree.locator(".box.in-disk").first
        expect(box).to_have_attribute("aria-label", re.compile("evicted, mostly on disk"))
        box.click()
        expect(tree.locator(".details")).to_contain_text(re.compile(r"\d+ in host memory, \d+ on disk"))
    assert faults == []


def test_a_row_shows_evicted_tokens_in_the_pattern_of_their_tier(browser: Browser, faults: list[str]) -> None:
    """The cache has 32 pages: six prompts of a dozen evict those of the chat."""
    small = ("--max-model-len", "512", "--max-running", "1", "--kv-memory", "2MiB", "--host-cache", "8MB")
    story = "The fox and the crow met by the river, and this is what they said to each other. " * 6
    viewport: Any = {"width": 1400, "height": 900}
    with serve(BUILTIN, *small) as server, browser.new_context(viewport=viewport) as context:
        page = watched(context.new_page(), faults)
        page.goto(server.url)
        settle(page, temperature="0", max_tokens="20")
        chat(page, f"Another chat. {story}")
        expect(rows(page)).to_have_count(3)
        for number in range(6):
            server.client.completions.create(model=server.model, prompt=f"{number} {story}", max_tokens=4)
        page.reload()
        row = rows(page).first
        expect(row).to_contain_text(re.compile(r"0 of \d+ tokens cached · \d+ evicted"))
        fill = row.locator(".bar .in-host").evaluate("(bar) => getComputedStyle(bar).fill")
        assert "stripes-host" in fill
    assert faults == []
