"""Settings, the editors of the schema and the tools, and documents. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
from typing import Any

from page_actions import chat, say, settle, wait_for_replies
from playwright.sync_api import Browser, Page, Route, expect
from served import Served, eventually


def record(page: Page, *deltas: dict[str, Any]) -> list[Any]:
    """Answers each request with the next delta, later ones with the last. Returns the requests' bodies."""
    bodies: list[Any] = []

    def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        delta = deltas[min(len(bodies), len(deltas)) - 1]
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies


def tool_call(number: int) -> dict[str, Any]:
    function = {"name": "weather", "arguments": "{}"}
    return {"tool_calls": [{"index": 0, "id": f"call-{number}", "function": function}]}


# Settings


def test_only_settings_that_have_a_value_are_sent(page: Page) -> None:
    bodies = record(page, {"content": "Yes."})
    chat(page, "Hello")
    sent = {"model", "messages", "stream", "stream_options", "explain_cache"}
    assert set(bodies[0]) == sent
    assert [each["role"] for each in bodies[0]["messages"]] == ["user"]
    settle(page, system="Be brief.", temperature="0.2", top_k="5", stop="END\n\\n", seed="7")
    page.click("#open-settings")
    page.select_option("#reasoning_effort-field", "low")
    page.select_option("#cache_prompt-field", "false")
    page.keyboard.press("Escape")
    say(page, "Again")
    wait_for_replies(page, 2)
    assert bodies[1]["messages"][0] == {"role": "system", "content": "Be brief."}
    changed = {name: value for name, value in bodies[1].items() if name not in sent}
    assert changed == {
        "temperature": 0.2,
        "top_k": 5,
        "stop": ["END", "\n"],
        "seed": 7,
        "reasoning_effort": "low",
        "cache_prompt": False,
    }
    page.click("#open-settings")
    page.click("#reset-settings")
    page.keyboard.press("Escape")
    say(page, "Again")
    wait_for_replies(page, 3)
    assert set(bodies[2]) == sent


def test_boxes_say_the_server_s_values(page: Page) -> None:
    expect(page.locator("#temperature-field")).to_have_attribute("placeholder", "0.5 (the server's)")
    expect(page.locator("#system")).to_have_attribute("placeholder", "The model's own")
    expect(page.locator("#seed-field")).to_have_attribute("placeholder", "random")


def test_a_wrong_setting_says_its_reason_below_its_box(page: Page) -> None:
    page.click("#open-settings")
    hint = page.locator("#temperature-field-hint")
    page.fill("#temperature-field", "9")
    expect(hint).to_have_text("Temperature: 9 must be between 0 and 2.")
    page.click("#reset-settings")
    expect(hint).to_contain_text("likeliest token")
    expect(page.locator("#temperature-field")).to_have_attribute("aria-invalid", "false")
    page.fill("#stop-field", "a\n" * 17)
    expect(page.locator("#stop-field-hint")).to_contain_text("at most 16")


def test_the_boxes_of_the_settings_are_in_line(page: Page) -> None:
    page.click("#open-settings")
    names = ["presence_penalty", "reasoning_effort", "cache_prompt"]
    boxes = [page.locator(f"#{name}-field").bounding_box() for name in names]
    places = {(box["x"], box["width"]) for box in boxes if box}
    assert len(places) == 1


def test_a_wrong_setting_is_named_and_not_sent(page: Page) -> None:
    bodies = record(page, {"content": "Yes."})
    settle(page, temperature="3")
    say(page, "Hello")
    expect(page.locator("#settings")).to_be_visible()
    expect(page.locator("#temperature-field")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    expect(page.locator(".message.error")).to_contain_text("Temperature: 3 must be between 0 and 2.")
    assert not bodies


# The editors


def test_a_form_and_its_json_are_the_same_schema(page: Page) -> None:
    bodies = record(page, {"content": "{}"})
    page.click("#schema-badge")
    form = page.locator("#schema-form")
    form.get_by_role("button", name="Add a property").click()
    expect(page.get_by_label("Name of property 1")).to_be_focused()
    page.keyboard.type("job")
    page.keyboard.press("Tab")
    page.get_by_label("Allowed values of property 1").fill("baker, smith")
    page.get_by_label("Description of property 1").fill("What one does")
    form.get_by_role("button", name="Add a property").click()
    page.get_by_label("Type of property 2").select_option("integer")
    page.get_by_role("group", name="Property 2").get_by_label("required").uncheck()
    wanted = {
        "type": "object",
        "properties": {
            "job": {"type": "string", "enum": ["baker", "smith"], "description": "What one does"},
            "property_2": {"type": "integer"},
        },
        "required": ["job"],
        "additionalProperties": False,
    }
    assert json.loads(page.input_value("#schema")) == wanted
    page.fill("#schema", json.dumps({**wanted, "title": "Person"}))
    page.get_by_role("button", name="Remove property 2").click()
    schema = json.loads(page.input_value("#schema"))
    assert schema["title"] == "Person" and list(schema["properties"]) == ["job"]
    page.locator("#schema-dialog .close").click()
    expect(page.locator("#schema-badge")).to_have_text("JSON: job")
    chat(page, "Hello")
    assert bodies[0]["response_format"]["json_schema"]["schema"] == schema
    page.click("#schema-badge")
    page.click("#clear-schema")
    expect(form.locator(".property")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#schema-badge")).to_have_text("JSON schema")


def test_the_fields_of_a_tool_have_visible_labels(page: Page) -> None:
    settle(page, tools='{"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}')
    page.click("#tools-badge")
    card = page.get_by_role("region", name="Tool 1")
    labels = ["Name", "Description", "Name", "Type", "Allowed values", "Description", "Mock value"]
    expect(card.locator("label span:visible")).to_have_text(labels)


def test_a_tool_is_made_in_its_form(page: Page) -> None:
    bodies = record(page, {"content": "Rain."})
    page.click("#tools-badge")
    page.get_by_role("button", name="Add a tool").click()
    page.keyboard.type("weather")
    page.keyboard.press("Tab")
    page.get_by_label("Description of tool 1").fill("The weather in a city")
    card = page.get_by_role("region", name="Tool 1")
    card.get_by_role("button", name="Add a property").click()
    page.keyboard.type("city")
    page.keyboard.press("Tab")
    page.get_by_label("Mock value of tool 1").fill("Rain")
    page.get_by_label("The first reply to a message must be a call").check()
    page.keyboard.press("Escape")
    expect(page.locator("#tools-badge")).to_have_text("1 tool")
    chat(page, "Hello")
    function = {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    assert bodies[0]["tools"] == [{"type": "function", "function": function}]
    assert bodies[0]["tool_choice"] == "required" and bodies[0]["parallel_tool_calls"] is False


def test_mock_values_answer_calls_until_the_rounds_are_used_up(page: Page) -> None:
    bodies = record(page, *(tool_call(number) for number in range(4)), {"content": "Rain."})
    settle(page, tools='{"name": "weather", "mock": "It rains."}')
    page.click("#tools-badge")
    page.fill("#rounds", "2")
    page.check("#must-call")
    page.keyboard.press("Escape")
    say(page, "How is the weather?")
    expect(page.locator(".results .note")).to_contain_text("Mock values have answered 2 rounds of calls.")
    expect(page.locator(".message.tool")).to_have_count(2)
    assert bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call-0", "content": "It rains."}
    assert "mock" not in json.dumps(bodies)
    assert bodies[0]["tool_choice"] == "required" and bodies[0]["parallel_tool_calls"] is False
    assert not {"tool_choice", "parallel_tool_calls"} & set(bodies[1])
    visible = page.locator(".results:visible textarea")
    expect(visible).to_have_value("It rains.")
    page.get_by_role("button", name="Send the results").locator("visible=true").click()
    expect(page.locator(".message.reply").last).to_contain_text("Rain.")
    expect(page.locator(".message.tool")).to_have_count(4)
    assert len(bodies) == 5


# Documents


def test_a_question_about_a_dropped_document_is_sent_behind_it(page: Page) -> None:
    text = "The company Norfish was founded in 1962. It has 40 employees.\n" * 5
    page.evaluate(
        """(text) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([text], "norfish.md"));
          for (const type of ["dragover", "drop"]) {
            const event = new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true });
            document.getElementById("messages").dispatchEvent(event);
          }
        }""",
        text,
    )
    chip = page.locator("#attachments .chip")
    expect(chip).to_contain_text("norfish.md")
    expect(chip).to_have_text(re.compile(r"norfish.md\d+ tokens"))  # about 78, and the server counts them
    settle(page, temperature="0")
    chat(page, "When was Norfish founded?")
    expect(chip).to_have_count(0)
    expect(page.locator(".document summary")).to_have_text("norfish.md")
    expect(page.locator(".message.user .plain")).to_have_text("When was Norfish founded?")
    page.press("#message", "ArrowUp")
    expect(chip).to_contain_text("norfish.md")
    page.fill("#message", "How many employees has Norfish?")
    page.keyboard.press("Enter")
    expect(page.locator(".branches")).to_have_count(1)
    wait_for_replies(page, 1)
    cached = page.locator(".prompt meter").last.evaluate("(meter) => meter.value / meter.max")
    assert cached > 0.8
    page.locator(".prompt summary").click()
    expect(page.locator(".rendered mark")).to_contain_text("Document norfish.md:")


def test_a_document_can_be_removed_and_files_without_text_are_refused(page: Page) -> None:
    files: list[Any] = [
        {"name": "a.txt", "mimeType": "text/plain", "buffer": "größer".encode()},
        {"name": "b.txt", "mimeType": "text/plain", "buffer": "größer".encode("utf-16")},
        {"name": "c.png", "mimeType": "image/png", "buffer": b"\x89PNG\x00\xff"},
        {"name": "d.txt", "mimeType": "text/plain", "buffer": b" "},
        {"name": "e.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 nothing"},
    ]
    bodies = record(page, {"content": "Yes."})
    page.set_input_files("#files", files)
    expect(page.locator("#attachments .chip")).to_have_count(2)
    notice = page.locator("#notice")
    expect(notice).to_contain_text("c.png: it is neither text in UTF-8 nor a PDF.")
    expect(notice).to_contain_text("d.txt: it has no text.")
    expect(notice).to_contain_text("e.pdf: it is a damaged PDF.")
    page.get_by_role("button", name="Remove a.txt").click()
    chat(page, "Really?")
    assert bodies[0]["messages"][0]["content"] == "Document b.txt:\ngrößer\n\nReally?"


def test_the_text_of_a_pdf_is_read(browser: Browser, page: Page) -> None:
    with browser.new_context() as context:
        writer = context.new_page()
        writer.set_content(
            "<h1>Trees</h1><p>The oak in Oslo is 412 years old.</p><p style='break-before:page'>Größer</p>"
        )
        pdf = writer.pdf()
    page.set_input_files(
        "#files", files=[{"name": "trees.pdf", "mimeType": "application/pdf", "buffer": pdf}]
    )
    expect(page.locator("#attachments .chip")).to_have_text(re.compile(r"^trees\.pdf(about )?\d+ tokens$"))
    bodies = record(page, {"content": "412"})
    chat(page, "How old is the oak?")
    assert bodies[0]["messages"][0]["content"] == (
        "Document trees.pdf:\nTrees\nThe oak in Oslo is 412 years old.\n\nGrößer\n\nHow old is the oak?"
    )


def test_the_tokens_of_a_document_are_estimated_until_the_server_has_counted_them(
    page: Page, server: Served
) -> None:
    text = "Ada Meyer works as a baker."
    counted = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()[
        "count"
    ]
    expect(page.locator(".start")).to_contain_text("4,096")
    held: list[Route] = []
    page.route("**/tokenize", lambda route: held.append(route))
    page.set_input_files("#files", [{"name": "a.txt", "mimeType": "text/plain", "buffer": text.encode()}])
    chip = page.locator("#attachments .chip")
    expect(chip).to_have_text("a.txtabout 7 tokens")
    eventually(lambda: page.wait_for_timeout(50) or bool(held))
    held[0].continue_()
    expect(chip).to_have_text(f"a.txt{counted} tokens")


def test_a_document_that_does_not_fit_is_marked(page: Page) -> None:
    expect(page.locator(".start")).to_contain_text("4,096")
    long: Any = {"name": "long.txt", "mimeType": "text/plain", "buffer": b"word " * 20_000}
    page.set_input_files("#files", files=[long])
    expect(page.locator("#attachments .chip.wrong")).to_contain_text("more than the 4,096 that fit")
