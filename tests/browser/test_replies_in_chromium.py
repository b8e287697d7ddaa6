"""How the page shows replies: Markdown, JSON for a schema, and texts that neither can read."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from page_actions import chat, say, settle, wait_for_replies
from playwright.sync_api import Page, Route, expect

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def answer_with(page: Page, *pieces: str, is_whole: bool = True) -> list[Any]:
    """Each chat gets these pieces of a reply, and an end if it `is_whole`. Returns the bodies of the
    requests."""
    bodies: list[Any] = []
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    ended = [{"choices": [{"delta": {}, "finish_reason": "stop"}]}] if is_whole else []
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, *ended]]

    def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        text = "".join([*events, *(["data: [DONE]\n\n"] if is_whole else [])])
        route.fulfill(body=text, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies


def open_requests(page: Page, *requests: dict[str, Any]) -> list[float]:
    """Makes these the open requests. Returns the times when the page asks for them."""
    asked: list[float] = []

    def answer(route: Route) -> None:
        asked.append(monotonic())
        listed = {"open": requests, "open_total": len(requests), "recent": [], "failed": []}
        route.fulfill(body=json.dumps(listed), content_type="application/json")

    page.unroute("**/server/requests")
    page.route("**/server/requests", answer)
    return asked


def test_a_reply_without_a_token_says_how_far_its_prompt_is(page: Page) -> None:
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    ours = {"id": "a", "state": "prefill", "prompt_tokens": 1782, "ready_tokens": 1029}
    asked = open_requests(page, ours)
    say(page, "Read this.")
    begun = monotonic()
    waiting = page.locator(".waiting")
    expect(waiting).to_have_text("1,029 of 1,782 prompt tokens ready")
    page.wait_for_timeout(2500)
    assert asked[0] - begun > 1.9 and all(later - earlier > 0.9 for earlier, later in pairwise(asked))
    open_requests(page, ours, {**ours, "id": "b"})
    expect(waiting).to_have_text(re.compile(r"^waiting for the first token, \d+ s$"))
    asked = open_requests(page)
    event = json.dumps({"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]})
    held[0].fulfill(body=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
    wait_for_replies(page, 1)
    expect(waiting).to_have_text("")
    asked.clear()
    page.wait_for_timeout(2500)
    assert not asked


def test_a_schema_s_value_is_shown_as_it_grows(page: Page) -> None:
    settle(page, temperature="0", schema=json.dumps(PERSON))
    say(page, "Extract the data as JSON. Sentence: Ada is 36 years old.")
    wait_for_replies(page, 1)
    expect(page.locator(".open-part")).to_have_text("Complete JSON.")
    value = json.loads(page.locator(".schema-view pre").inner_text())
    assert set(value) == {"name", "age"}


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_schema_box_indents_a_value_whatever_the_model_s_white_space(page: Page, indent: Any) -> None:
    value = {"name": "Ada", "age": 36, "tags": ["a", {"b": None}]}
    text = json.dumps(value, indent=indent)
    bodies = answer_with(page, *(text[start : start + 9] for start in range(0, len(text), 9)))
    settle(page, schema=json.dumps(PERSON))
    chat(page, "Write.", "Again.")
    expect(page.locator(".open-part").first).to_have_text("Complete JSON.")
    assert page.locator(".schema-view pre").first.inner_text() == json.dumps(value, indent=2)
    assert bodies[1]["messages"][-2] == {"role": "assistant", "content": text}


@pytest.mark.parametrize("width", [1400, 390])
def test_opening_the_cache_line_moves_nothing_above_it(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    chat(page, *(f"Line {number} of a chat that fills the page." for number in range(5)))
    line = page.locator(".prompt summary").nth(3)
    line.scroll_into_view_if_needed()
    page.wait_for_timeout(100)

    def places() -> Any:
        boxes = [line.bounding_box(), page.locator(".actions").nth(7).bounding_box()]
        return [(box["x"], box["y"]) for box in boxes if box]

    before = places()
    line.click()
    expect(page.locator(".rendered")).to_be_visible()
    assert places() == before
    line.click()
    assert places() == before


def test_json_that_breaks_off_is_said_to_have_ended_inside_its_value(page: Page) -> None:
    answer_with(page, '{\n  "name": "Ada",', '\n  "age": 3', is_whole=False)
    settle(page, schema=json.dumps(PERSON))
    chat(page, "Write.")
    page.wait_for_timeout(200)  # a drawing that was asked for before the end comes with the next frame
    expect(page.locator(".open-part")).to_have_text("The reply ended inside age (integer).")
    assert page.locator(".schema-view pre").inner_text() == '{\n  "name": "Ada",\n  "age": 3\n}'


def test_a_text_that_is_no_json_is_shown_beside_a_schema(page: Page) -> None:
    answer_with(page, "I can't do this.\n  Sorry.")
    settle(page, schema=json.dumps(PERSON))
    chat(page, "Write.")
    expect(page.locator(".open-part")).to_have_text("The text is not JSON.")
    assert page.locator(".schema-view pre").inner_text() == "I can't do this.\n  Sorry."


NESTED = {
    "lists": "- " * 2500 + "a",
    "quotes": "> " * 2000 + "a",
    "numbers": "1. " * 2500 + "a",
    "brackets": "[" * 20_000,
    "nested lists": "\n".join("  " * depth + "- a" for depth in range(150)),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_reply_that_markdown_can_t_read_stays_on_screen_and_in_the_conversation(
    page: Page, faults: list[str], kind: str
) -> None:
    page.set_viewport_size({"width": 1000, "height": 900})  # no path beside the chat: it is too long for one
    text = f"Before.\n\n{NESTED[kind]}"
    bodies = answer_with(page, *(text[start : start + 1000] for start in range(0, len(text), 1000)))
    chat(page, "Write.", "Go on.")
    assert bodies[1]["messages"][-2] == {"role": "assistant", "content": text}
    shown = page.locator(".message.reply .content").first.inner_text()
    assert "Before." in shown and NESTED[kind].split()[-1][-100:] in shown
    assert faults == []


def grown(page: Page, text: str, step: int = 1) -> Any:
    """How the text looks that grew by `step` characters and that was shown at once, and the longest time of
    a draw."""
    source = page.locator('script[type="module"]').get_attribute("src")
    assert source is not None
    return page.evaluate(
        """async ([path, text, step]) => {
          const { GrowingMarkdown } = await import(path);
          const place = document.createElement("div");
          const grown = new GrowingMarkdown(place);
          let longest = 0;
          for (let end = step; end <= text.length; end += step) {
            const start = performance.now();
            grown.show(text.slice(0, end));
            const taken = performance.now() - start;
            longest = Math.max(longest, taken);
            // Wait until it draws again.
            if (step > 1) await new Promise((resolve) => setTimeout(resolve, 4 * taken));
          }
          grown.show(text, true);
          const whole = document.createElement("div");
          new GrowingMarkdown(whole).show(text, true);
          return {
            same: place.isEqualNode(whole),
            tags: [...new Set([...whole.querySelectorAll("*")].map((each) => each.localName))].sort(),
            links: [...whole.querySelectorAll("a")].map((each) => each.href),
            text: whole.textContent,
            longest,
          };
        }""",
        ["/" + source.replace("main.js", "markdown.js"), text, step],
    )


def test_markdown_becomes_elements_and_html_stays_text(page: Page) -> None:
    text = (
        "# T\n\n**b** <img src=x onerror=alert(1)> [bad](javascript:alert(1)) [good](https://x.org)\n\n"
        "<script>alert(1)</script>\n\n```py\nx < 1\n```\n\n| a |\n|-|\n| 1 |\n\n![i](https://evil.example/x.png)"
    )
    found = grown(page, text)
    assert found["same"], "the text that grew and the whole text look the same"
    assert not {"script", "img", "iframe"} & set(found["tags"])
    assert {"h3", "strong", "pre", "table", "a"} <= set(found["tags"])
    assert found["links"] == ["https://x.org/"]
    assert "<script>alert(1)</script>" in found["text"] and "<img src=x" in found["text"]


def test_a_text_whose_settled_blocks_are_not_read_again_looks_like_the_whole(page: Page) -> None:
    text = (
        "See [the docs][1].\r\n\r\n- a\n\n  more of a\n- b\n\n1. one\n\nTitle\n===\n\n    code\n\n"
        "    code\n\n> quoted\nlazily\n\n```\na\n\nb\n```\n***\n\n* x\n\n\n* y\n\n  1. z\n\nThe end.\n\n[1]: https://x.org\n"
    )
    for step in (1, 2, 3, 7):
        found = grown(page, text, step)
        assert found["same"] and found["links"] == ["https://x.org/"]


@pytest.mark.parametrize("part", ["word ", "Some words.\n\n", "    ", "_a", "- a\n"])
def test_no_draw_of_a_growing_reply_takes_long(page: Page, part: str) -> None:
    text = "A" + part * (32_000 // len(part)) + "Z"
    found = grown(page, text, 500)
    assert found["text"].rstrip().endswith("Z")
    assert found["longest"] < 1000  # milliseconds, also on a busy machine
