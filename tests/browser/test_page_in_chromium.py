"""The page in a browser: chats, the prefix tree, keys, phones, keyboards. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import arbora
import pytest
from page_actions import chat, say, settle, wait_for_replies
from playwright.sync_api import Browser, Page, Route, expect
from served import Served
from watched_page import watched

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"


def test_a_chat_is_answered_and_its_second_turn_is_cached(page: Page) -> None:
    settle(page, temperature="0")
    chat(page, "My name is Nora.", "What is my name?")
    expect(page.locator(".message.reply .content").last).to_contain_text("Nora")
    last = page.locator(".prompt").last
    expect(last.locator("summary")).to_have_text(
        re.compile(r"\d+ of \d+ prompt tokens cached · \d+ tokens · first after \d+ ms")
    )
    cached = last.locator("meter").evaluate("(meter) => meter.value")
    assert cached > 0
    last.locator("summary").click()
    expect(last.locator(".rendered mark")).to_contain_text("My name is Nora.")
    expect(last.locator(".rendered span")).to_contain_text("What is my name?")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_changed_system_prompt_is_shown_beside_the_earlier_one(
    browser: Browser, server: Served, faults: list[str], width: int, scheme: Any
) -> None:
    """The texts share a row on a wide window and a column on a phone, and can be read in both schemes."""
    viewport: Any = {"width": width, "height": 900}
    rules = "You are a careful assistant. Answer in a short sentence, and never guess. " * 3
    with browser.new_context(viewport=viewport, color_scheme=scheme) as context:
        page = watched(context.new_page(), faults)
        page.goto(server.url)
        settle(page, system=f"Chat {width}. The user is Ada. {rules}")
        chat(page, f"Hello {width}")
        settle(page, system=f"Chat {width}. The user is <b>Bo</b>. {rules}")
        say(page, f"What is the name of user {width}?")
        wait_for_replies(page, 2)
        last = page.locator(".prompt").last
        last.locator("summary").click()
        place = last.locator(".departure")
        expect(place).to_contain_text("First difference in the system prompt, at token ")
        expect(last).to_contain_text(
            re.compile(r"\d+ of \d+ tokens found in the cache; \d+ could have been\.")
        )
        now, earlier = place.locator(".texts pre").all()
        expect(now).to_contain_text("The user is <b>Bo</b>")
        expect(earlier).to_contain_text("The user is Ada")
        expect(now.locator("mark")).to_contain_text(re.compile("^<b>"))
        boxes = now.bounding_box(), earlier.bounding_box()
        assert boxes[0] is not None and boxes[1] is not None
        assert (boxes[0]["y"] == boxes[1]["y"]) == (width > 600)
        assert boxes[1]["x"] + boxes[1]["width"] <= width
        ink = now.locator("mark").evaluate("(mark) => getComputedStyle(mark).color")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert abs(brightness(ink) - brightness(paper)) > 100
    assert faults == []


def brightness(colour: str) -> float:
    """The mean of the channels of a colour such as `rgb(1, 2, 3)`."""
    channels = [int(each) for each in re.findall(r"\d+", colour)[:3]]
    return sum(channels) / 3


def test_a_prompt_that_could_not_be_fetched_is_fetched_when_opened_again(
    page: Page, faults: list[str]
) -> None:
    refusal = json.dumps({"error": {"message": "Too many requests wait."}})
    page.route("**/tokenize", lambda route: route.fulfill(status=503, body=refusal), times=1)
    chat(page, "Hello")
    prompt = page.locator(".prompt")
    prompt.locator("summary").click()
    expect(prompt.locator(".error")).to_contain_text("Too many requests wait.")
    prompt.locator("summary").click()
    expect(prompt.locator(".error")).to_be_hidden()
    prompt.locator("summary").click()
    expect(prompt.locator(".rendered")).to_contain_text("Hello")
    expect(prompt.locator(".error")).to_have_count(0)
    faults.clear()  # Chromium logs each answer with an error status


def test_a_wrong_schema_is_named_while_it_is_typed_and_not_sent(page: Page) -> None:
    settle(page, schema='{"type": "strin"}')
    expect(page.locator("#schema-badge")).to_have_class(re.compile("wrong"))
    say(page, "Hello")
    expect(page.locator("#schema-dialog")).to_be_visible()
    expect(page.locator("#schema-state")).to_contain_text('schema.type is "strin"')
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert").filter(has_text="schema.type")).to_be_visible()


def test_a_reply_can_be_stopped_and_the_chat_goes_on(page: Page) -> None:
    settle(page, schema='{"type": "string", "minLength": 100000, "maxLength": 200000}')
    say(page, "Write.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))
    expect(page.locator(".open-part")).to_contain_text("Open: the value (string)")
    page.click("#stop")
    expect(page.locator(".note")).to_have_text("You stopped the reply.")
    settle(page, schema="")
    say(page, "Hello")
    wait_for_replies(page, 2)


def test_results_can_be_sent_only_while_their_calls_are_the_end_of_the_chat(page: Page) -> None:
    call = {"index": 0, "id": "call-1", "function": {"name": "weather", "arguments": "{}"}}
    held: list[Route] = []

    def answer(route: Route) -> None:
        """Calls a tool at first, and leaves the next request without an answer."""
        if len(json.loads(route.request.post_data or "")["messages"]) > 2:
            held.append(route)
            return
        chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    results = page.locator("form.results")
    say(page, "How is the weather?")
    expect(results).to_be_visible()
    say(page, "Never mind.")
    expect(page.locator(".message.reply[aria-busy]")).to_have_count(1)
    expect(results).to_be_hidden()
    results.evaluate("(form) => form.dispatchEvent(new Event('submit', {cancelable: true}))")
    expect(page.locator(".message.reply")).to_have_count(2)
    expect(page.locator(".message.tool")).to_have_count(0)
    page.locator(".message.user").last.get_by_role("button", name="Edit").click()
    expect(results).to_be_visible()
    assert len(held) == 1


def test_a_tool_is_called_and_gets_the_typed_result(page: Page) -> None:
    bodies: list[Any] = []

    def answer(route: Route) -> None:
        """Calls a tool at first, then says its result. The built-in model was not trained to call tools."""
        bodies.append(json.loads(route.request.post_data or ""))
        messages = bodies[-1]["messages"]
        call = {"index": 0, "id": "call-1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        delta = {"content": "Rain."} if messages[-1]["role"] == "tool" else {"tool_calls": [call]}
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    settle(page, tools='{"name": "weather", "parameters": {"type": "object"}}')
    expect(page.locator("#tools-badge")).to_have_text("1 tool")
    say(page, "How is the weather?")
    expect(page.locator(".call")).to_contain_text('"city": "Oslo"')
    page.fill(".results textarea", "It rains.")
    page.get_by_role("button", name="Send the results").click()
    expect(page.locator(".message.reply").last).to_contain_text("Rain.")
    assert bodies[0]["tools"][0]["function"]["name"] == "weather"
    assert bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call-1", "content": "It rains."}
    assert bodies[1]["messages"][-2]["tool_calls"][0]["id"] == "call-1"


def test_a_server_with_keys_asks_for_one(browser: Browser, guarded: Served) -> None:
    with browser.new_context() as context:
        page = watched(context.new_page(), [])
        page.goto(guarded.url)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.evaluate("""() => {
            window.dialogsClosed = 0;
            document.getElementById("key-dialog").addEventListener("close", () => window.dialogsClosed++);
        }""")
        for wrong in ("wrong", "  "):
            page.fill("#key", wrong)
            page.keyboard.press("Enter")
            expect(page.locator("#key-error")).to_contain_text("valid API key")
            assert page.evaluate("window.dialogsClosed") == 0 and page.evaluate("sessionStorage.length") == 0
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        assert page.evaluate("window.dialogsClosed") == 1
        chat(page, "Hello")
        assert page.evaluate("sessionStorage['arbora-key']") == "secret"
        kept = page.evaluate("Object.entries(localStorage).flat().join()")
        assert "Hello" in kept and "secret" not in kept


def test_a_key_dialog_closed_without_a_key_stays_closed_until_the_next_try(
    browser: Browser, guarded: Served
) -> None:
    with browser.new_context() as context:
        page = watched(context.new_page(), [])
        page.goto(guarded.url)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.fill("#key", "wro")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        assert page.evaluate("sessionStorage.length") == 0
        say(page, "Hello")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".message.error")).to_contain_text("API key")
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Try again").click()
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        wait_for_replies(page, 1)
        expect(page.locator(".message.error")).to_have_count(0)


@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_nothing_is_wider_than_the_window(browser: Browser, server: Served, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        page = watched(context.new_page(), [])
        page.goto(server.url)
        chat(page, "My name is Ada.")
        for view in ("Chat", "Server"):
            page.get_by_role("link", name=view).click()
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        expect(page.locator("#tiles div").first).to_be_visible()


def test_the_page_is_dark_where_the_system_is(browser: Browser, server: Served) -> None:
    def lightness(scheme: Any) -> int:
        with browser.new_context(color_scheme=scheme) as context:
            page = context.new_page()
            page.goto(server.url)
            colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
            return int(colour.removeprefix("rgb(").split(",")[0])

    assert lightness("light") > 200 and lightness("dark") < 60


def test_tab_reaches_all_controls_in_their_order(page: Page) -> None:
    chat(page, "My name is Ada.")
    page.locator("#toggle-chats").focus()
    reached = []
    for _ in range(25):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
        page.keyboard.press("Tab")
    wanted = ["toggle-chats", "to-chat", "to-server", "model", "open-settings", "new-chat", "search"]
    wanted += ["Rename My name is Ada.", "Delete My name is Ada.", "import", "messages", "Edit", "Regenerate"]
    wanted += ["message", "attach", "schema-badge", "tools-badge", "send"]
    assert [each for each in reached if each in wanted] == wanted


def test_no_other_page_may_embed_it(browser: Browser, server: Served) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/docs")
        framed = page.evaluate(
            """(url) => new Promise((resolve) => {
              const frame = document.createElement("iframe");
              frame.onload = () => resolve(frame.contentDocument?.title ?? "refused");
              frame.src = url;
              document.body.append(frame);
            })""",
            server.url,
        )
        assert framed != "Arbora"
