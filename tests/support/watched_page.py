"""A page of a browser whose errors are collected."""

from __future__ import annotations

from playwright.sync_api import Page


def watched(page: Page, faults: list[str]) -> Page:
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(30_000)
    return page
