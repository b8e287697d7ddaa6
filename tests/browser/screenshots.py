"""Makes the pictures of docs/images from a server of the built-in model that has computed nothing yet.

.venv/bin/python tests/browser/screenshots.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

IMAGES = Path(__file__).parents[2] / "docs/images"
CHATS = (
    ("My name is Ada.", "What is my name?", "What can you do?"),
    ("My name is Ada.", "What is the capital of France?"),
    ("My name is Grace.", "What is my name?"),
    ("What is the capital of Italy?", "And of Spain?", "What is 2 + 2?"),
    ("What is the capital of Norway?",),
    ("Count from one to ten.", "Once more, please."),
)


def chat(page: Page, texts: tuple[str, ...]) -> None:
    """Begins a chat, unless the page shows an empty one."""
    if page.locator(".message").count():
        page.click("#new-chat")
    for number, text in enumerate(texts, 1):
        page.fill("#message", text)
        page.press("#message", "Enter")
        expect(page.locator(".message.reply:not([aria-busy])")).to_have_count(number)


def opened(browser: Browser, url: str, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(url)
    expect(page.locator("#model option").first).to_be_attached()
    page.click("#open-settings")
    page.fill("#temperature-field", "0")
    page.keyboard.press("Escape")
    page.focus("#message")
    return page


def begin_branch(page: Page, text: str) -> None:
    """Asks another last question in place of the one that the chat has."""
    page.press("#message", "ArrowUp")
    page.fill("#message", text)
    page.press("#message", "Enter")
    expect(page.locator(".branches")).to_have_count(1)
    expect(page.locator(".message.reply:not([aria-busy])")).to_have_count(2)


def make(browser: Browser, url: str) -> None:
    page = opened(browser, url, viewport={"width": 1360, "height": 800})
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "start.png")
    for texts in CHATS:
        chat(page, texts)
    chat(page, CHATS[0][:2])
    begin_branch(page, "What can you do?")
    page.locator(".prompt summary").last.click()
    expect(page.locator(".rendered mark")).to_be_visible()
    expect(page.locator(".part")).to_have_count(5)
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "chat.png")
    page.get_by_role("link", name="Server").click()
    for texts in CHATS[1:4]:
        page.wait_for_timeout(2500)
        page.get_by_role("link", name="Chat").click()
        chat(page, texts)
        page.get_by_role("link", name="Server").click()
    page.wait_for_timeout(9000)
    page.locator("#server-tree [role=treeitem]").nth(1).click()
    page.get_by_role("button", name="Whole tree").click()
    page.wait_for_timeout(1000)
    page.set_viewport_size({"width": 1360, "height": 1330})
    page.locator("#server").evaluate("(view) => view.scrollTo(0, 0)")
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / "server.png")
    phone = {"width": 390, "height": 760}
    page = opened(browser, url, viewport=phone, color_scheme="dark", is_mobile=True, has_touch=True)
    chat(page, CHATS[0][:2])
    page.screenshot(path=IMAGES / "phone.png")


def main() -> None:
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        make(browser, sys.argv[1])
        browser.close()


if __name__ == "__main__":
    main()
