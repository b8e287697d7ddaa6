"""What a user does on the page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

BADGES = {"schema": "#schema-badge", "tools": "#tools-badge"}


def settle(page: Page, **fields: str) -> None:
    """Fills the system prompt, the schema, the tools, and sampling fields by their names."""
    for name, text in fields.items():
        page.click(BADGES.get(name, "#open-settings"))
        page.fill(f"#{name}" if name in (*BADGES, "system") else f"#{name}-field", text)
        page.keyboard.press("Escape")


def say(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def wait_for_replies(page: Page, number: int) -> None:
    expect(page.locator(".message.reply:not([aria-busy])")).to_have_count(number)


def chat(page: Page, *texts: str) -> None:
    """Sends the texts one after the other, and waits for each reply."""
    for number, text in enumerate(texts, 1):
        say(page, text)
        wait_for_replies(page, number)


def open_server_view(page: Page) -> None:
    page.get_by_role("link", name="Server").click()
    expect(page.locator("#server-tree [role=treeitem]").first).to_be_visible()
