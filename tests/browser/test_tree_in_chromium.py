"""The prefix tree in a browser. `make test-browser` runs this."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import arbora
import pytest
from page_actions import chat, open_server_view
from playwright.sync_api import Browser, Page, expect
from served import serve
from watched_page import watched

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"


def test_the_tree_grows_beside_the_chat(page: Page) -> None:
    items = page.locator("#chat-tree [role=treeitem]")
    chat(page, "My name is Ada.")
    expect(items.nth(1)).to_be_visible()
    before = items.count()
    page.click("#new-chat")
    chat(page, "A wholly different beginning of a chat, about trees and their roots.")
    expect(items.nth(before)).to_be_visible()


def test_the_tree_is_used_with_the_keyboard(page: Page) -> None:
    chat(page, "My name is Ada.")
    open_server_view(page)
    tree = page.locator("#server-tree")
    tree.locator("[role=treeitem]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(tree.locator(".node-text")).to_contain_text("My name is Ada.")
    expect(tree.locator('[aria-selected="true"]')).to_have_count(1)
    tree.get_by_role("button", name="Zoom in").click()
    expect(tree.locator("[role=treeitem]").first).to_have_attribute("aria-selected", "true")
    tree.get_by_role("button", name="Show the whole tree").click()
    expect(tree.locator("[role=treeitem].root").first).to_be_visible()


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
