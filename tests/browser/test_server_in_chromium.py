"""The operators' view in a browser. `make test-browser` runs this."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from page_actions import chat, open_server_view
from playwright.sync_api import Browser, Page, Route, expect
from served import Served, eventually
from watched_page import watched

STATUS = {
    "state": "restarting",
    "model": "m",
    "names": ["m", "other"],
    "adapters": ["pirate"],
    "version": "1",
    "device": "cuda:0",
    "uptime_s": 90,
    "max_model_len": None,
    "http_processes": 2,
    "pages": None,
}


def answer_with(value: object) -> Any:
    def fulfil(route: Route) -> None:
        route.fulfill(body=json.dumps(value), headers={"content-type": "application/json"})

    return fulfil


def test_the_state_the_requests_the_plots_and_the_cache_are_shown(page: Page, server: Served) -> None:
    server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": "many"})
    chat(page, "My name is Ada.")
    open_server_view(page)
    expect(page.locator("#server-state")).to_have_text("ready")
    expect(page.locator("#facts")).to_contain_text("4,096 tokens")
    expect(page.locator("#tiles")).to_contain_text("Hit rate")
    expect(page.locator("#ended-requests tbody tr").first).to_contain_text("POST /v1/chat/completions")
    expect(page.locator("#ended-requests tbody tr").first).to_contain_text(
        re.compile(r"200.*ms.*(stop|length)")
    )
    page.get_by_role("button", name="Failed").click()
    failed = page.locator("#ended-requests tbody tr").first
    expect(failed).to_contain_text("invalid_type")
    expect(failed).to_contain_text("max_tokens is …, but must be an integer.")
    expect(page.locator("#plots canvas")).to_have_count(8)
    expect(page.locator("#plots figure:not([hidden]) figcaption").last).to_have_text("Pages of the KV cache")
    captions = ["Pages by layers", "Tiers", "Largest namespaces", "Pins and leases"]
    expect(page.locator("#tables caption")).to_have_text(captions)


def test_a_page_opened_later_shows_what_was_before(browser: Browser, server: Served, page: Page) -> None:
    chat(page, "My name is Ada.")
    page.wait_for_timeout(6000)  # a sample is taken every five seconds
    with browser.new_context() as context:
        later = context.new_page()
        later.goto(f"{server.url}/#server")
        expect(later.locator("#plots figure").filter(has_text="Tokens a second")).to_contain_text("generated")
        expect(later.locator("#plots canvas")).to_have_count(8)


def test_the_plots_show_more_minutes(page: Page) -> None:
    open_server_view(page)
    five, sixty = (page.get_by_role("button", name=f"{minutes} min", exact=True) for minutes in (5, 60))
    expect(five).to_have_attribute("aria-pressed", "true")
    sixty.focus()
    with page.expect_request(re.compile(r"server/history\?minutes=60&after=0$")):
        page.keyboard.press("Enter")
    expect(sixty).to_have_attribute("aria-pressed", "true")
    expect(five).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#plots canvas")).to_have_count(8)


def test_a_plot_draws_its_values_once_with_gaps_and_dots(page: Page) -> None:
    """Two refreshes at the same time get the same samples."""
    page.add_init_script("""window.drawn = [];
      const lineTo = Path2D.prototype.lineTo, arc = Path2D.prototype.arc;
      const stroke = CanvasRenderingContext2D.prototype.stroke;
      Path2D.prototype.lineTo = function (...to) { (this.lines ??= []).push(to[0]); lineTo.apply(this, to); };
      Path2D.prototype.arc = function (...of) { (this.dots ??= []).push(of[0]); arc.apply(this, of); };
      CanvasRenderingContext2D.prototype.stroke = function (...path) {
        if (path[0]) drawn.push({ lines: path[0].lines ?? [], dots: path[0].dots ?? [] });
        stroke.apply(this, path);
      };""")
    rates = [0.1, 0.2, None, 0.4, None, 0.6, 0.7, None]
    times = [time.time() - 100 + 5 * number for number in range(len(rates))]
    page.route("**/server/history*", answer_with({"times": times, "series": {"hit_rate": rates}}))
    page.goto(page.url + "#server")
    page.reload()
    expect(page.locator("#plots canvas")).to_have_count(8)
    page.wait_for_timeout(3000)  # the page has asked again
    paths = page.evaluate("drawn")
    lines = [path["lines"] for path in paths if path["lines"]]
    assert lines and all(len(line) == 5 and line == sorted(line) for line in lines)
    dots = {tuple(path["dots"]) for path in paths if path["dots"]}
    (dot,) = dots.pop()
    assert not dots and abs(dot - lines[-1][2]) <= 3  # a dot's arc begins at its right


def test_open_requests_are_shown_with_their_state(page: Page) -> None:
    request = {"id": "chatcmpl-1-0", "state": "prefill", "age_s": 2, "prompt_tokens": 100}
    request |= {"cached_tokens": 20, "ready_tokens": 50, "output_tokens": 0}
    listed: Any = {"open": [request], "open_total": 1, "recent": [], "failed": []}
    page.route("**/server/requests", answer_with(listed))
    open_server_view(page)
    row = page.locator("#open-requests tbody tr")
    expect(row.locator("td")).to_have_text(["chatcmpl-1-0", "prefill, 50 %", "2 s", "100", "20", "0"])
    expect(page.locator("#ended-requests tbody")).to_have_text("none")


def test_a_table_keeps_the_focus_and_its_place_while_it_changes(page: Page, server: Served) -> None:
    for _ in range(25):
        server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    open_server_view(page)
    rows = page.locator("#ended-requests tbody tr")
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show fewer")).to_be_focused()
    assert rows.count() > 10
    page.locator("#ended-requests .wide").focus()
    before = rows.count()
    server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    expect(rows).to_have_count(min(200, before + 1))
    expect(page.locator("#ended-requests .wide")).to_be_focused()


def test_the_state_is_shown_while_no_model_answers(page: Page, faults: list[str]) -> None:
    refusal = {"error": {"message": "The model is starting."}}
    page.route("**/server", answer_with(STATUS))
    page.route("**/cache", lambda route: route.fulfill(status=503, body=json.dumps(refusal)))
    page.get_by_role("link", name="Server").click()
    expect(page.locator("#server-state")).to_have_text("restarting")
    expect(page.locator("#facts")).to_contain_text("pirate")
    expect(page.locator("#health")).to_have_text("The model is starting.")
    faults.clear()  # the browser reports each refused load


def test_the_view_that_the_address_names_has_no_line_around_it(browser: Browser, server: Served) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/#server")
        expect(page.locator("#server-state")).to_have_text("ready")
        expect(page.locator("#server")).to_be_focused()  # the browser follows the address
        assert page.locator("#server").evaluate("(each) => getComputedStyle(each).outlineStyle") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(browser: Browser, server: Served, scheme: Any) -> None:
    server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    with browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme) as context:
        page = watched(context.new_page(), [])
        page.goto(f"{server.url}/#server")
        expect(page.locator("#ended-requests tbody tr").first).to_contain_text("/v1/")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        region = page.locator("#ended-requests .wide")
        assert region.evaluate("(each) => each.scrollWidth > each.clientWidth")
        region.focus()
        page.keyboard.press("ArrowRight")
        eventually(lambda: region.evaluate("(each) => each.scrollLeft") > 0)
