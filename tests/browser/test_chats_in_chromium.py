"""The list of chats, branches, and what a reload finds. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli.chat.conversation import load_conversation
from page_actions import chat, say, settle, wait_for_replies
from playwright.sync_api import Browser, Page, expect
from served import Served
from watched_page import watched

ENDLESS = '{"type": "string", "minLength": 100000, "maxLength": 200000}'


def titles(page: Page) -> Any:
    return page.locator("#chat-items .open")


def texts(page: Page) -> Any:
    return page.locator(".message.user .plain")


# The first screen


def test_an_empty_chat_shows_the_model_and_examples(page: Page) -> None:
    start = page.locator(".start")
    expect(start).to_contain_text("builtin")
    expect(start).to_contain_text("4,096 tokens of context · on the CPU")
    expect(start).to_contain_text("A demonstration with 3.7 million parameters")
    expect(page.locator("#message")).to_be_focused()
    start.get_by_role("button", name="JSON").click()
    expect(page.locator("#message")).to_have_value(re.compile("Extract the data"))
    expect(page.locator("#schema-badge")).to_have_text("JSON: name, age")
    start.get_by_role("button", name="Document").click()
    expect(page.locator("#schema-badge")).to_have_text("JSON schema")
    expect(page.locator("#attachments .chip")).to_contain_text("people.txt")
    start.get_by_role("button", name="Tool").click()
    expect(page.locator("#attachments .chip")).to_have_count(0)
    expect(page.locator("#tools-badge")).to_have_text("1 tool")
    start.get_by_role("button", name="Chat").click()
    page.press("#message", "Enter")
    wait_for_replies(page, 1)
    expect(start).to_have_count(0)


def test_the_tool_example_says_that_the_model_s_template_has_no_tools(page: Page) -> None:
    expect(page.locator(".example", has_text="Tool")).not_to_contain_text("template")
    card = {"id": "m", "max_model_len": 10, "device": "cpu", "template_has_tools": False}
    page.route("**/v1/models", lambda route: route.fulfill(body=json.dumps({"data": [card]})))
    page.reload()
    expect(page.locator(".example", has_text="Tool")).to_contain_text("chat template has no tools")


def send_example(page: Page, name: str) -> None:
    settle(page, temperature="0")
    page.locator(".example", has_text=name).click()
    page.press("#message", "Enter")


def test_the_tool_example_ends_in_a_reply_to_the_result_of_its_call(page: Page) -> None:
    send_example(page, "Tool")
    wait_for_replies(page, 2)
    expect(page.locator(".call")).to_have_count(1)
    expect(page.locator(".call")).to_contain_text(re.compile(r'Calls read_profile\s*{\s*"user": "ada"\s*}'))
    expect(page.locator(".message.tool")).to_contain_text("My name is Ada. I live in Oslo.")
    reply = page.locator(".message.reply .content").last
    expect(reply).to_have_text("Nice to meet you, Ada! Oslo sounds like a good place to live.")


def test_the_document_example_leads_to_a_second_question_whose_document_is_cached(page: Page) -> None:
    send_example(page, "Document")
    wait_for_replies(page, 1)
    expect(page.locator(".message.reply .content")).to_have_text("Norfish was founded in 1962.")
    offer = page.locator(".follow-up")
    expect(offer).to_contain_text("The document is in the cache now.")
    page.reload()
    offer.get_by_role("button", name="What is Ada Meyer's job?").click()
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("Enter")
    wait_for_replies(page, 2)
    expect(page.locator(".message.reply .content").last).to_have_text("Ada Meyer works as a baker.")
    expect(offer).to_have_count(0)
    page.locator(".prompt summary").last.click()
    expect(page.locator(".rendered mark").last).to_contain_text("It has 40 employees.")


def test_a_changed_example_leads_nowhere(page: Page) -> None:
    page.locator(".example", has_text="Document").click()
    page.get_by_role("button", name="Remove people.txt").click()
    page.press("#message", "Enter")
    wait_for_replies(page, 1)
    expect(page.locator(".follow-up")).to_have_count(0)


@pytest.mark.parametrize(("width", "columns"), [(1400, 2), (700, 2), (390, 1)])
def test_the_examples_fill_whole_rows(browser: Browser, server: Served, width: int, columns: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator(".example")).to_have_count(4)
        places = [each.bounding_box() for each in page.locator(".example").all()]
        rows = Counter(round(place["y"]) for place in places if place)
        assert list(rows.values()) == [columns] * (4 // columns)


# The list


def test_a_reload_returns_to_the_chat_with_its_settings(page: Page) -> None:
    settle(page, temperature="0", system="Be kind.")
    chat(page, "My name is Ada.", "What is my name?")
    line = page.locator(".prompt summary").last.inner_text()
    page.reload()
    expect(texts(page)).to_have_text(["My name is Ada.", "What is my name?"])
    expect(page.locator(".message.reply .content").last).to_contain_text("Ada")
    assert page.locator(".prompt summary").last.inner_text() == line
    expect(page.locator("#temperature-field")).to_have_value("0")
    expect(page.locator("#system")).to_have_value("Be kind.")
    page.locator(".prompt summary").last.click()
    expect(page.locator(".rendered")).to_contain_text("Be kind.")
    say(page, "What can you do?")
    wait_for_replies(page, 3)


def test_chats_are_listed_searched_renamed_and_deleted_with_undo(page: Page) -> None:
    chat(page, "My name is Ada.")
    page.click("#new-chat")
    expect(page.locator(".start")).to_be_visible()
    chat(page, "About trees\nand roots")
    expect(titles(page)).to_have_text(["About trees", "My name is Ada."])
    page.fill("#search", "ROOTS")
    expect(titles(page)).to_have_text(["About trees"])
    page.fill("#search", "")
    titles(page).last.click()
    expect(texts(page)).to_have_text(["My name is Ada."])
    titles(page).last.hover()
    page.get_by_role("button", name="Rename My name is Ada.").click()
    page.fill("#chat-items input", "Names")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(["About trees", "Names"])
    say(page, "What is my name?")
    wait_for_replies(page, 2)
    expect(titles(page)).to_have_text(["Names", "About trees"])
    titles(page).first.hover()
    page.get_by_role("button", name="Delete Names").click()
    expect(titles(page)).to_have_text(["About trees"])
    expect(page.locator(".start")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(titles(page)).to_have_text(["Names", "About trees"])
    expect(texts(page)).to_have_count(2)
    page.get_by_role("button", name="Delete all").click()
    expect(titles(page)).to_have_count(0)
    assert page.evaluate("localStorage.length") == 0


def test_a_chat_that_is_deleted_while_its_reply_is_written_stays_deleted(page: Page) -> None:
    chat(page, "My name is Ada.")
    settle(page, schema=ENDLESS)
    say(page, "Write.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))
    titles(page).hover()
    page.get_by_role("button", name="Delete My name is Ada.").click()
    expect(page.locator("#send")).to_be_visible()
    page.wait_for_timeout(500)
    expect(titles(page)).to_have_count(0)


def test_a_chat_that_is_left_while_its_reply_is_written_keeps_the_part(page: Page) -> None:
    settle(page, schema=ENDLESS)
    say(page, "Write.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))
    page.click("#new-chat")
    titles(page).click()
    expect(page.locator(".note")).to_have_text("The reply ended when you left this chat.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))


def test_a_reload_keeps_the_part_of_a_reply_that_has_arrived(page: Page) -> None:
    settle(page, schema=ENDLESS)
    say(page, "Write.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))
    page.reload()
    expect(texts(page)).to_have_text(["Write."])
    expect(page.locator(".note")).to_have_text("The page was closed before the reply ended.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{20}"))


def test_an_exported_chat_loads_in_the_terminal_and_comes_back_with_its_branches(
    page: Page, tmp_path: Path
) -> None:
    settle(page, temperature="0")
    chat(page, "My name is Ada.", "What is my name?")
    page.keyboard.press("ArrowUp")
    page.fill("#message", "What can you do?")
    page.keyboard.press("Enter")
    wait_for_replies(page, 2)
    expect(page.locator(".branches")).to_have_count(1)
    titles(page).hover()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export My name is Ada.").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    loaded = load_conversation(path)
    assert loaded.settings == {"temperature": 0}
    assert [each.content for each in loaded.messages[::2]] == ["My name is Ada.", "What can you do?"]
    page.get_by_role("button", name="Delete all").click()
    page.set_input_files("#import-file", path)
    expect(texts(page)).to_have_text(["My name is Ada.", "What can you do?"])
    page.get_by_role("button", name="Previous branch").click()
    expect(texts(page)).to_have_text(["My name is Ada.", "What is my name?"])
    expect(page.locator("#temperature-field")).to_have_value("0")


def test_a_file_that_is_no_chat_is_refused_by_its_name(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    page.set_input_files("#import-file", path)
    expect(page.locator("#notice")).to_contain_text("other.json is not imported: it is no chat")


def test_a_browser_that_keeps_nothing_says_so_and_chats_go_on(
    browser: Browser, server: Served, faults: list[str]
) -> None:
    forbid = """for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });
    }"""
    with browser.new_context() as context:
        page = watched(context.new_page(), faults)
        page.add_init_script(forbid)
        page.goto(server.url)
        expect(page.locator("#chats-trouble")).to_contain_text("does not let the page keep chats")
        chat(page, "My name is Ada.")
        page.click("#new-chat")
        titles(page).click()
        expect(texts(page)).to_have_text(["My name is Ada."])
    assert faults == []


def test_a_full_storage_is_said(page: Page) -> None:
    page.evaluate("""() => {
      for (let size = 2 ** 22; size >= 1; size /= 2) {
        try { localStorage.setItem(`fill${size}`, "x".repeat(size)); } catch { /* full */ }
      }
    }""")
    chat(page, "My name is Ada.")
    expect(page.locator("#chats-trouble")).to_contain_text("storage for the page is full")
    expect(titles(page)).to_have_text(["My name is Ada."])


def test_each_key_has_chats_of_its_own(browser: Browser, guarded: Served) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(guarded.url)
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        chat(page, "My name is Ada.")
        expect(titles(page)).to_have_count(1)
        other = context.new_page()  # the same browser's storage, and another key
        answer = json.dumps({"data": [{"id": "m", "max_model_len": 10, "device": "cpu"}]})
        other.route("**/v1/models", lambda route: route.fulfill(body=answer))
        other.add_init_script("sessionStorage.setItem('arbora-key', 'other')")
        other.goto(guarded.url)
        expect(other.locator(".start")).to_contain_text("10 tokens of context")
        expect(titles(other)).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1400])
def test_the_list_of_chats_can_be_hidden(browser: Browser, server: Served, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        page.goto(server.url)
        chat(page, "My name is Ada.")
        chats = page.locator("#chats")
        toggle = page.locator("#toggle-chats")
        if width == 390:
            expect(chats).to_be_hidden()
            toggle.click()
            expect(page.locator("#new-chat")).to_be_focused()
            page.keyboard.press("Escape")
            expect(chats).to_be_hidden()
            expect(toggle).to_be_focused()
            toggle.click()
            titles(page).click()
            expect(chats).to_be_hidden()
        else:
            expect(chats).to_be_visible()
            toggle.click()
            expect(chats).to_be_hidden()
            page.reload()
            expect(page.locator(".message.reply")).to_be_visible()
            expect(chats).to_be_hidden()


def test_on_a_touch_screen_every_chat_can_be_renamed_and_deleted(browser: Browser, server: Served) -> None:
    size: Any = {"width": 390, "height": 800}
    with browser.new_context(viewport=size, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(server.url)
        chat(page, "My name is Ada.")
        page.tap("#toggle-chats")
        page.tap("#new-chat")
        page.tap("#toggle-chats")
        expect(page.locator(".chat-item.current")).to_have_count(0)
        page.get_by_role("button", name="Rename My name is Ada.").tap()
        page.fill("#chat-items input", "Names")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Delete Names").tap()
        expect(titles(page)).to_have_count(0)


# Branches


def test_an_edited_message_begins_a_branch_and_both_stay(page: Page) -> None:
    settle(page, temperature="0")
    chat(page, "My name is Ada.", "What is my name?")
    page.press("#message", "ArrowUp")
    expect(page.locator("#message")).to_have_value("What is my name?")
    expect(page.locator(".message.left-aside")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#message")).to_have_value("")
    expect(page.locator(".message.left-aside")).to_have_count(0)
    page.locator(".message.user").last.hover()
    page.get_by_role("button", name="Edit").last.click()
    page.fill("#message", "What can you do?")
    page.keyboard.press("Enter")
    expect(texts(page)).to_have_text(["My name is Ada.", "What can you do?"])
    wait_for_replies(page, 2)
    cached = page.locator(".prompt meter").last.evaluate("(meter) => meter.value / meter.max")
    assert cached > 0.5
    branches = page.get_by_role("group", name="Branch 2 of 2")
    branches.get_by_role("button", name="Previous branch").click()
    expect(texts(page)).to_have_text(["My name is Ada.", "What is my name?"])
    expect(page.locator(".message.reply .content").last).to_contain_text("Ada")
    expect(page.get_by_role("button", name="Next branch")).to_be_focused()
    page.keyboard.press("Enter")
    expect(texts(page).last).to_have_text("What can you do?")


def test_a_regenerated_reply_is_a_branch_with_a_cached_prompt(page: Page) -> None:
    chat(page, "My name is Ada.")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".branches")).to_have_text("2/2")
    prompt, cached = page.locator(".prompt meter").evaluate("(meter) => [meter.max, meter.value]")
    assert cached >= prompt - 1
    page.get_by_role("button", name="Previous branch").click()
    expect(page.locator(".branches")).to_have_text("1/2")


def test_a_refused_regeneration_leaves_the_first_reply(page: Page, faults: list[str]) -> None:
    chat(page, "My name is Ada.")
    refusal = json.dumps({"error": {"message": "Too many requests wait."}})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, body=refusal), times=1)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".message.error")).to_contain_text("Too many requests wait.")
    expect(page.locator(".message.reply")).to_have_count(1)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".branches")).to_have_text("2/2")
    faults.clear()  # Chromium logs each answer with an error status


def test_escape_stops_a_reply_whose_speed_is_still_shown(page: Page) -> None:
    settle(page, schema=ENDLESS)
    say(page, "Write.")
    expect(page.locator(".schema-view pre")).to_have_text(re.compile(".{200}"))
    page.keyboard.press("Escape")
    expect(page.locator(".note")).to_have_text("You stopped the reply.")
    expect(page.locator(".prompt summary")).to_contain_text(
        re.compile(r"\d+ of \d+ prompt tokens cached · \d+ tokens · first after [\d.]+ m?s · \d+ tokens/s")
    )


def test_a_reply_can_be_copied(browser: Browser, server: Served) -> None:
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.goto(server.url)
        chat(page, "My name is Ada.")
        page.get_by_role("button", name="Copy the reply").click()
        expect(page.get_by_title("Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == page.locator(".message.reply .content").inner_text().strip()
