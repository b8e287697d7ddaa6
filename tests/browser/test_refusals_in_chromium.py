"""Refused messages on the page leave the conversation, and nothing that the user wrote is lost."""

from __future__ import annotations

import json
from typing import Any

from page_actions import chat, say, settle, wait_for_replies
from playwright.sync_api import Page, Route, expect


def test_the_server_s_refusal_is_shown_in_its_own_words(page: Page, faults: list[str]) -> None:
    settle(page, schema='{"type": "array", "uniqueItems": true}')
    say(page, "Hello")
    expect(page.locator(".message.error")).to_contain_text("uniqueItems")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    faults.clear()  # Chromium logs each answer with an error status


def test_a_new_message_takes_the_place_of_a_refused_try(page: Page, faults: list[str]) -> None:
    settle(page, schema='{"type": "array", "uniqueItems": true}')
    say(page, "Hello")
    expect(page.locator(".message.error")).to_be_visible()
    settle(page, schema='{"type": "string", "minLength": 100000, "maxLength": 200000}')
    say(page, "Write.")
    expect(page.locator(".message.reply[aria-busy]")).to_have_count(1)
    expect(page.locator(".message.error")).to_have_count(0)
    page.click("#stop")
    wait_for_replies(page, 1)
    faults.clear()  # Chromium logs each answer with an error status


def test_a_refused_message_leaves_the_conversation_and_returns_to_the_box(
    page: Page, faults: list[str]
) -> None:
    """The built-in model's context is 4,096 tokens."""
    long = "word " * 5000
    chat(page, "My name is Ada.")
    say(page, long)
    expect(page.locator(".message.error")).to_contain_text("maximum context length")
    expect(page.locator(".message.user")).to_have_count(1)
    expect(page.locator("#message")).to_have_value(long)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.error")).to_have_count(1)
    say(page, "What is my name?")
    wait_for_replies(page, 2)
    expect(page.locator(".message.error")).to_have_count(0)
    expect(page.locator(".message.user .plain")).to_have_text(["My name is Ada.", "What is my name?"])
    faults.clear()  # Chromium logs each answer with an error status


def test_a_message_beside_a_mistaken_schema_is_in_no_later_prompt(page: Page) -> None:
    settle(page, schema='{"type": "strin"}')
    say(page, "A refused text.")
    page.keyboard.press("Escape")
    expect(page.locator(".message.error")).to_contain_text("schema.type")
    expect(page.locator("#message")).to_have_value("A refused text.")
    settle(page, schema="")
    chat(page, "Hello")
    page.locator(".prompt summary").click()
    expect(page.locator(".rendered")).to_contain_text("Hello")
    expect(page.locator(".rendered")).not_to_contain_text("A refused text.")


def test_text_typed_meanwhile_follows_the_refused_text(page: Page, faults: list[str]) -> None:
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route), times=1)
    say(page, "First.")
    expect(page.locator(".message.reply[aria-busy]")).to_have_count(1)
    page.fill("#message", "Second.")
    held[0].fulfill(status=400, body=json.dumps({"error": {"message": "No."}}))
    expect(page.locator(".message.error")).to_contain_text("No.")
    expect(page.locator("#message")).to_have_value("First.\nSecond.")
    faults.clear()  # Chromium logs each answer with an error status


def call_then_refuse(page: Page) -> list[Any]:
    """Answers the first request with a call, refuses the second and answers the third with a text.

    Returns the list to which the requests' bodies are appended.
    """
    call = {"index": 0, "id": "call-1", "function": {"name": "weather", "arguments": "{}"}}
    bodies: list[Any] = []

    def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        if len(bodies) == 2:
            route.fulfill(status=400, body=json.dumps({"error": {"message": "Too long."}}))
            return
        delta = {"content": "Rain."} if len(bodies) == 3 else {"tool_calls": [call]}
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies


def test_a_refused_message_in_place_of_results_is_tried_again_itself(page: Page, faults: list[str]) -> None:
    bodies = call_then_refuse(page)
    say(page, "How is the weather?")
    expect(page.locator(".results textarea")).to_be_visible()
    say(page, "Never mind.")
    expect(page.locator(".message.error")).to_contain_text("Too long.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.reply").last).to_contain_text("Rain.")
    assert bodies[1]["messages"] == bodies[2]["messages"]
    faults.clear()  # Chromium logs each answer with an error status


def test_refused_results_of_a_call_return_to_their_form(page: Page, faults: list[str]) -> None:
    bodies = call_then_refuse(page)
    say(page, "How is the weather?")
    page.fill(".results textarea", "It rains.")
    page.get_by_role("button", name="Send the results").click()
    expect(page.locator(".message.error")).to_contain_text("Too long.")
    expect(page.locator(".message.tool")).to_have_count(0)
    expect(page.locator(".results textarea")).to_have_value("It rains.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.reply").last).to_contain_text("Rain.")
    expect(page.locator(".message.tool")).to_have_count(1)
    assert bodies[1]["messages"] == bodies[2]["messages"]
    faults.clear()  # Chromium logs each answer with an error status
