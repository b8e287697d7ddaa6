"""The modules of the operators' view that compute: samples of the last minutes, and rows of tables."""

from __future__ import annotations

import re
from typing import Any

import pytest
from arbora.frontend.http.history import CAUSES, SERIES
from arbora.frontend.page.assets import FOLDER
from page_module import PageModule


@pytest.fixture
def history() -> PageModule:
    return PageModule("history")


@pytest.fixture(scope="module")
def requests() -> PageModule:
    return PageModule("dom", "tables", "requests")


def answer(*samples: tuple[float, float | None]) -> dict[str, Any]:
    return {"times": [time for time, _ in samples], "series": {"hit_rate": [value for _, value in samples]}}


def test_samples_are_joined_and_those_before_the_last_minutes_are_dropped(history: PageModule) -> None:
    pieces = [answer((0, 0.1), (5, None)), answer(), answer((298, 0.3), (303, 0.5))]
    found = history.run(
        """(() => {
            const history = new History(5);
            const paths = [history.path];
            const hadAny = pieces.map((piece) => history.add(piece));
            paths.push(history.path);
            return { paths, hadAny, rows: history.rows(["hit_rate"], 100), last: history.latest("hit_rate") };
        })()""",
        pieces=pieces,
    )
    assert found["paths"] == ["server/history?minutes=5&after=0", "server/history?minutes=5&after=303"]
    assert found["hadAny"] == [True, False, True]
    assert found["rows"] == [[5, 298, 303], [None, 30, 50]] and found["last"] == 0.5


def test_samples_that_arrive_twice_are_added_once(history: PageModule) -> None:
    pieces = [answer((5, 0.1), (10, 0.2)), answer((5, 0.1), (10, 0.2)), answer((10, 0.2), (15, 0.3))]
    found = history.run(
        """(() => {
            const history = new History(5);
            return { hadAny: pieces.map((piece) => history.add(piece)), rows: history.rows(["hit_rate"]) };
        })()""",
        pieces=pieces,
    )
    assert found == {"hadAny": [True, False, True], "rows": [[5, 10, 15], [0.1, 0.2, 0.3]]}


def test_a_history_without_samples_is_empty(history: PageModule) -> None:
    assert history.run("new History(5).rows(['a', 'b'])") == [[], [], []]
    assert history.run("new History(5).latest('a')") is None


def test_every_series_of_the_server_is_plotted_and_no_other() -> None:
    """The names of the series stand in server.js; those of causes and statuses are shortened there."""
    source = (FOLDER / "server.js").read_text()
    causes = source.partition("const CAUSES = [")[2].partition("]")[0]
    errors = source.partition("const ERRORS = [")[2].partition("]")[0]
    assert causes == ", ".join(f'"{cause}"' for cause in CAUSES)
    plotted = {f"missed_{cause}" for cause in CAUSES}
    plotted |= {f"errors_{status}" for status in re.findall(r"\w+", errors)}
    plotted |= {name for name in SERIES if f'"{name}"' in source}
    assert plotted == set(SERIES)


def test_every_cause_of_a_miss_is_said_in_words_below_a_reply() -> None:
    source = (FOLDER / "prompt_view.js").read_text()
    said = source.partition("const CAUSES = {")[2].partition("};")[0]
    assert re.findall(r"^  (\w+): ", said, re.MULTILINE) == list(CAUSES)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0852, "85 ms"),
        (3.25, "3.3 s"),
        (125, "2 min 5 s"),
        (7260, "2 h 1 min"),
        (200_000, "2 days 7 h"),
        (None, "–"),
    ],
)
def test_a_duration_is_written_in_words(requests: PageModule, seconds: float | None, text: str) -> None:
    assert requests.run("duration(seconds)", seconds=seconds) == text


def test_the_cells_of_an_open_request_say_how_far_it_is(requests: PageModule) -> None:
    request = {"id": "a-0", "state": "prefill", "age_s": 1.5, "prompt_tokens": 2000, "cached_tokens": 500}
    request |= {"ready_tokens": 1000, "output_tokens": 0}
    assert requests.run("openCells(request)", request=request) == [
        "a-0",
        "prefill, 50 %",
        "1.5 s",
        "2,000",
        "500",
        "0",
    ]
    waiting = {**request, "state": "waiting", "cached_tokens": None}
    assert requests.run("openCells(request)", request=waiting)[1:5] == ["waiting", "1.5 s", "2,000", "–"]


def test_the_cells_of_an_ended_request_leave_out_what_is_unknown(requests: PageModule) -> None:
    record: dict[str, Any] = {
        "ended_at": 7,
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "total_s": 2,
    }
    cells = requests.run("recentCells(record, (time) => `at ${time}`)", record=record)
    assert cells == ["at 7", "POST /v1/completions", "200", *["–"] * 5, "2 s", "–", "–"]
    record |= {
        "finish": ["stop", "stop"],
        "tokens_per_s": 120.4,
        "first_token_s": 0.02,
        "client": "gone",
        "key": "ada",
    }
    cells = requests.run("recentCells(record, String)", record=record)
    assert cells[6:] == ["20 ms", "120", "2 s", "stop (client gone)", "ada"]


def test_the_cells_of_a_failed_request_say_why(requests: PageModule) -> None:
    record = {"ended_at": 7, "method": "POST", "path": "/v1/completions", "status": 400, "total_s": 0}
    record |= {"code": "invalid_type", "reason": "n is …, but must be an integer."}
    cells = requests.run("failedCells(record, String)", record=record)
    assert cells == ["7", "400", record["code"], record["reason"], "POST /v1/completions", "–"]


def test_the_column_of_keys_is_there_only_on_a_server_with_keys(requests: PageModule) -> None:
    head = ["status", "key"]
    assert requests.run("withoutKeys(head, rows)", head=head, rows=[["200", "–"]]) == [["status"], [["200"]]]
    rows = [["200", "–"], ["400", "ada"]]
    assert requests.run("withoutKeys(head, rows)", head=head, rows=rows) == [head, rows]
