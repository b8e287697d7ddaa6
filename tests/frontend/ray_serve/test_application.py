"""What the Ray Serve application decides without a cluster: its arguments, the number of replicas, routes."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from arbora.frontend.ray_serve import build_app
from arbora.frontend.ray_serve.policy import LatencyPolicy
from arbora.frontend.ray_serve.request_router import PrefixRequestRouter
from arbora.frontend.ray_serve.settings import list_settings, read_arguments
from arbora.frontend.ray_serve.ticket import Ticket
from arbora.runtime.errors import ConfigError
from ray.serve.schema import ServeDeploySchema

MANIFEST = Path(__file__).parents[3] / "docs/deploy/rayservice.yaml"


def test_the_backlog_sets_the_number_of_replicas() -> None:
    policy = LatencyPolicy(ttft_s=1.0)
    assert policy.choose(2, 3.5, 0.0) == 4
    assert policy.choose(4, 3.5, 0.0) == 4
    assert policy.choose(4, 0.5, 0.0) == 3  # one at a time
    assert policy.choose(1, 0.0, 0.0) == 1


def test_slow_steps_add_a_replica_and_keep_it_while_they_would_be_slow_without() -> None:
    policy = LatencyPolicy(ttft_s=1.0, itl_s=0.05)
    assert policy.choose(2, 0.0, 0.06) == 3
    assert policy.choose(3, 0.0, 0.04) == 3  # 0.06 with two
    assert policy.choose(3, 0.0, 0.03) == 2


def test_no_replica_is_added_while_one_starts() -> None:
    metrics = {"backlog_s": {"a": 9.0}, "step_s": {"a": 1.0}}
    context: Any = SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=1, target_num_replicas=2)
    assert LatencyPolicy(1.0)(context) == (2, {})
    context.current_num_replicas = 2
    assert LatencyPolicy(1.0)(context) == (9, {})


def test_a_replica_that_cant_start_is_given_up_when_the_load_ends() -> None:
    context: Any = SimpleNamespace(
        aggregated_metrics={"backlog_s": {"a": 0.0}}, current_num_replicas=4, target_num_replicas=6
    )
    assert LatencyPolicy(1.0)(context) == (3, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing required field `models`"),
        ({"models": []}, r"length >= 1.*models"),
        ({"models": [{"mode": "x"}]}, "unknown field `mode`.*models"),
        ({"models": [{"num_replicas": 0}]}, r">= 1.*num_replicas"),
        ({"models": [{}], "options": {"replicas": 2}}, "options.replicas has no meaning.*num_replicas"),
        ({"models": [{"options": {"kv_memry": "1GiB"}}]}, "no option 'kv_memry'.*kv_memory"),
        ({"models": [{"options": {"kv_memory": "much"}}]}, "options.kv_memory: much"),
        (
            {"models": [{}, {"name": "b", "options": {"api_key": "KEY"}}]},
            "options.api_key of the model 'b' concerns all models.*beside `models`",
        ),
        ({"models": [{}], "options": {"host": "unix:/run/arbora"}}, "options.host unix:/run/arbora.*names"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "two models have the name 'a'"),
        (
            {"models": [{}], "options": {"api_key": "@keys"}, "ingress": {"num_replicas": 2}},
            "limits of keys",
        ),
    ],
)
def test_an_error_names_the_wrong_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)args: .*{message}"):
        build_app(arguments)


def test_options_of_a_model_win_over_those_of_all() -> None:
    given = {"models": [{"name": "a", "options": {"step_ms": 20}}, {"name": "b"}], "options": {"step_ms": 40}}
    first, second = list_settings(read_arguments(given))
    assert (first.build_config().step_ms, second.build_config().step_ms) == (20, 40)
    assert first.build_config().served_model_name == "a"
    assert first.build_config().data_dir is None


def test_the_manifest_is_a_rayservice_whose_application_can_be_built() -> None:
    manifest = yaml.safe_load(MANIFEST.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    assert set(manifest["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"], "else Ray adds no workers for more replicas"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all({"name", "image"} <= set(each) for each in group["template"]["spec"]["containers"])
    config = ServeDeploySchema(**yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "arbora.frontend.ray_serve:build_app"
    build_app(application.args)


class _Chooser:
    """Always chooses one replica."""

    def __init__(self, choice: str | None) -> None:
        self.choice = choice
        self.routed: list[str] = []

    async def choose(self, replicas: Collection[str]) -> str | None:
        return self.choice if self.choice in replicas else None

    def route(self, replica: str) -> None:
        self.routed.append(replica)


async def test_the_router_asks_the_ticket() -> None:
    router: Any = PrefixRequestRouter.__new__(PrefixRequestRouter)
    replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab"]
    chooser = _Chooser("b")
    pending = SimpleNamespace(args=[Ticket(1, "id", chooser)])
    assert await router.choose_replicas(replicas, pending) == [[replicas[1]]]
    assert await router.choose_replicas(replicas[:1], pending) == []  # Serve asks again later
    assert await router.choose_replicas(replicas, SimpleNamespace(args=[])) == [replicas]
    router.on_request_routed(pending, replicas[1].replica_id, None)
    assert chooser.routed == ["b"]


def test_a_ticket_travels_without_its_chooser() -> None:
    sent = cast(Ticket, pickle.loads(pickle.dumps(Ticket(3, "id", _Chooser("a")))))
    assert (sent.client, sent.request, sent.chooser) == (3, "id", None)
