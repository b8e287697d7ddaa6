"""What the page says about drafts. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from arbora.runtime.config import BUILTIN_MODEL
from page_actions import chat, open_server_view, say, settle, wait_for_replies
from playwright.sync_api import Browser, Page, expect
from served import Served, eventually, serve
from watched_page import watched

GAIN = re.compile(r"\d(\.\d)? tokens a step, \d+ % of drafts accepted")
HOLD_REPLIES = """const ask = fetch;
window.fetch = (url, options) => {
  if (!String(url).includes("chat/completions")) return ask(url, options);
  const body = new ReadableStream({ start: (reply) => (window.reply = reply) });
  return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
};
window.send = (text) => reply.enqueue(new TextEncoder().encode(text));"""


@pytest.fixture(params=["8", "off"])
def speculate(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def drafting(speculate: str) -> Iterator[Served]:
    with serve(BUILTIN_MODEL, "--kv-memory", "32MiB", "--speculate", speculate) as server:
        yield server


def test_a_reply_and_the_server_view_say_what_drafts_gain_if_there_are_any(
    browser: Browser, drafting: Served, speculate: str, faults: list[str]
) -> None:
    eventually(lambda: drafting.http.get("/server/history").json()["times"])  # rates need a sample before
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = watched(context.new_page(), faults)
        page.goto(drafting.url)
        settle(page, temperature="0")
        chat(page, "Count from one to ten.")
        page.click("#new-chat")
        chat(page, "Count from one to ten.")
        line = page.locator(".prompt summary").last
        generated = page.locator("#tiles > div").filter(has_text="Generated")
        if speculate == "off":
            expect(line).to_contain_text("tokens/s")
            assert "drafts" not in line.inner_text()
        else:
            expect(line).to_contain_text(GAIN)
        open_server_view(page)
        expect(generated).not_to_contain_text("–")
        if speculate == "off":
            assert "drafts" not in generated.inner_text()
        else:
            expect(generated).to_contain_text(GAIN)
    assert faults == []


def test_a_reply_says_what_drafts_gain_while_it_is_written(page: Page) -> None:
    page.add_init_script(HOLD_REPLIES)
    page.reload()
    say(page, "Count.")
    gains = page.locator(".message.reply .gain")
    send(page, "One", {"completion_tokens": 1})
    expect(page.locator(".message.reply")).to_contain_text("One")
    expect(gains).to_have_text("")
    details = {"reasoning_tokens": 0, "steps": 20, "drafted_tokens": 36, "accepted_tokens": 28}
    send(page, " two", {"completion_tokens": 48, "completion_tokens_details": details})
    expect(gains).to_have_text("2.4 tokens a step, 78 % of drafts accepted")
    send(page, " three", {"completion_tokens": 49, "completion_tokens_details": details}, "stop")
    page.evaluate("send('data: [DONE]\\n\\n'), reply.close()")
    wait_for_replies(page, 1)
    expect(gains).to_have_text("")
    expect(page.locator(".prompt summary")).to_contain_text("2.4 tokens a step, 78 % of drafts accepted")


def send(page: Page, text: str, usage: dict[str, Any], finish: str | None = None) -> None:
    """Sends the page a piece of the reply that it waits for."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    chunk = {"id": "c", "choices": [choice], "usage": {"prompt_tokens": 9, **usage}}
    page.evaluate("(text) => send(text)", f"data: {json.dumps(chunk)}\n\n")
