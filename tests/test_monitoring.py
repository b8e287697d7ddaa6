"""docs/monitoring: the dashboard and the alert rules name metrics that the server has, and can be loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from http_world import HELLO, HttpWorld, http_world
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[1]
DASHBOARD: Any = json.loads((ROOT / "docs/monitoring/dashboard.json").read_text())
RULES_FILE = ROOT / "docs/monitoring/rules.yml"
RULES: Any = yaml.safe_load(RULES_FILE.read_text())
ALERTS: Any = RULES["groups"][0]["rules"]
DURATION = re.compile(r"(\d+[smhd])+")
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}


def panel_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def parse(expression: str) -> None:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    promql_parser.parse(expression)


async def read_metrics(world: HttpWorld) -> dict[str, set[str]]:
    """The names of all samples of /metrics, each with the names of its labels."""
    text = (await world.http.get("/metrics", headers={"x-api-key": "a"})).text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_metric_of_the_files_is_in_an_answer_of_metrics() -> None:
    async with http_world(api_keys=("a",)) as world:
        headers = {"x-api-key": "a"}
        await world.http.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers)
        await world.http.post("/v1/chat/completions", json={}, headers=headers)
        there = await read_metrics(world)
    expressions = [*panel_expressions(), *(alert["expr"] for alert in ALERTS)]
    named = {name for each in expressions for name in re.findall(r"\barbora_\w+", each)}
    assert len(named) > 20 and named - set(there) == set()
    grouped = {
        (metric, label)
        for each in expressions
        for labels, metric in re.findall(r"by \(([^)]*)\) \(rate\((arbora_\w+)", each)
        for label in labels.split(", ")
        if label not in ("job", "instance")  # labels of Prometheus
    }
    assert {(metric, label) for metric, label in grouped if label not in there[metric]} == set()


@pytest.mark.parametrize("expression", [*panel_expressions(), *(alert["expr"] for alert in ALERTS)])
def test_an_expression_is_promql(expression: str) -> None:
    parse(expression)


def test_a_wrong_expression_is_noticed() -> None:
    with pytest.raises(ValueError):
        parse("sum by (le (rate(arbora_steps_total[5m])))")


def test_the_dashboard_has_what_grafana_needs() -> None:
    assert DASHBOARD["uid"] and DASHBOARD["title"] and DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["time"].keys() == {"from", "to"}
    variables = {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 10
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("timeseries", "stat") and panel["title"] and panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        x, y, width, height = (panel["gridPos"][side] for side in "xywh")
        cells = {(column, row) for column in range(x, x + width) for row in range(y, y + height)}
        assert x + width <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


def test_the_rules_have_what_prometheus_needs() -> None:
    assert RULES.keys() == {"groups"} and all(group.keys() == {"name", "rules"} for group in RULES["groups"])
    for alert in ALERTS:
        assert alert.keys() == {"alert", "expr", "for", "labels", "annotations"}, alert["alert"]
        assert re.fullmatch(r"Arbora[A-Za-z]+", alert["alert"]) and DURATION.fullmatch(alert["for"])
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"].keys() == {"summary", "description"}
        for text in alert["annotations"].values():
            assert isinstance(text, str) and text.count("{{") == text.count("}}")
    names = [alert["alert"] for alert in ALERTS]
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is not installed")
def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES_FILE)], check=True)


def test_the_page_for_operators_names_each_alert() -> None:
    text = (ROOT / "docs/operating.md").read_text()
    assert [alert["alert"] for alert in ALERTS if f"`{alert['alert']}`" not in text] == []
