"""The benchmark of answers: its tasks, how it reads a reply, and its figures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from answer_modes import KINDS, STYLES, parse_mode, regex_of
from answer_reading import read_choice, read_json, score
from answer_report import Reply, load, paired_difference, report, save
from answer_tasks import TASKS, Task
from answers import DEFAULT_MODES, preference, read_reply, value_of_call

PERSON = {"name": "Ada Berg", "age": 34, "member": False, "phone": None}
STYLED: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "indented": {"indent": 2},
}


def reply(mode: str, prompt: str, right: float, **others: Any) -> Reply:
    return Reply("person", mode, prompt, "", [], "stop", 10, 0.5, True, {"name": right, "age": 1.0}, **others)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_has_200_different_cases_that_its_schema_and_its_regexes_match(task: Task) -> None:
    cases = task.cases(200)
    assert len({case.prompt for case in cases}) == 200
    assert cases == task.cases(200) and cases[:50] == task.cases(50)
    patterns = {style: re.compile(regex_of(task.schema, STYLES[style])) for style in STYLES}
    for case in cases:
        Draft202012Validator(task.schema).validate(case.answer)
        in_schema_order = json.loads(json.dumps(case.answer))
        if task.name == "reversed":
            in_schema_order = {name: case.answer[name] for name in task.schema["properties"]}
        for style, pattern in patterns.items():
            assert pattern.fullmatch(json.dumps(in_schema_order, **STYLED[style])), (style, case)
        assert set(score(case.answer, case.answer).values()) == {1.0}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_examples_are_no_cases_and_their_answers_precede_the_question(task: Task) -> None:
    case = task.cases(200)[-1]
    turns = task.turns(case)
    assert len(turns) == 2 * task.examples + 1
    assert turns[-1] == {"role": "user", "content": case.prompt}
    if task.tools:
        call, result, question = task.turns(case, are_calls=True)[-3:]
        assert call["tool_calls"][0]["id"] == result["tool_call_id"] and question == turns[-1]
        assert json.loads(call["tool_calls"][0]["function"]["arguments"])
    assert not {turn["content"] for turn in turns[:-1]} & {case.prompt for case in task.cases(200)}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada Berg", "age": 34, "member": false, "phone": null}',
        'So:\n```json\n{\n  "Name": "ada berg.",\n  "age": "34 years",\n  "member": "no"\n}\n```\n{}',
        "{'name': 'Ada Berg', 'age': 34, 'member': False, 'phone': None}",
        'In the form {"x": 1} it is {"name": "Ada Berg", "age": 34.0, "member": false, "phone": "unknown"}',
    ],
)
def test_a_free_reply_is_read_leniently(text: str) -> None:
    assert set(score(PERSON, read_json(text, list(PERSON))).values()) == {1.0}


@pytest.mark.parametrize("text", ["", "Ada Berg is 34.", '{"name": "Ada', "[" * 5000])
def test_a_reply_without_a_whole_value_is_not_read(text: str) -> None:
    assert read_json(text, list(PERSON)) is None
    assert set(score(PERSON, None).values()) == {0.0}


def test_each_wrong_field_counts_as_wrong() -> None:
    value = {"name": "Ada", "age": 35, "member": True, "phone": "12"}
    assert score(PERSON, value) == {"name": 0, "age": 0, "member": 0, "phone": 0}
    assert score(PERSON, {"name": "Ada Berg"}) == {"name": 1, "age": 0, "member": 0, "phone": 1}


def test_a_list_that_stops_early_loses_its_length_and_the_missing_items() -> None:
    animals = {"animals": ["fox", "owl", "cat", "cow"]}
    assert score(animals, {"animals": ["fox", "owl"]}) == {"animals items": 0.5, "animals length": 0}
    assert score(animals, animals) == {"animals items": 1, "animals length": 1}


def test_fields_of_inner_objects_are_scored_each() -> None:
    answer = {"item": {"price": 4.5, "product": "mugs"}}
    assert score(answer, {"item": {"price": 4.5}}) == {"item.price": 1, "item.product": 0}


def test_a_choice_is_the_one_named_first_and_of_two_at_one_place_the_longer() -> None:
    choices = ("north", "northeast", "south")
    assert read_choice("From the Northeast, not the south", choices) == "northeast"
    assert read_choice('"south"', choices) == "south"
    assert read_choice("northern", choices) is None
    assert read_choice("to-north-east", ("to", "north-east", "to-north")) == "to-north"


def test_a_call_is_read_as_its_name_and_arguments() -> None:
    call = {"function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}
    assert value_of_call(call) == {"name": "set_timer", "arguments": {"minutes": 5}}


@pytest.mark.parametrize(
    ("name", "mode", "right"),
    [("set_timer", "free", True), ("get_timer", "free", False), ("set_timer", "tools", False)],
)
def test_arguments_count_only_in_a_call_of_the_right_function(name: str, mode: str, right: bool) -> None:
    task = next(task for task in TASKS if task.tools)
    case = next(case for case in task.cases(9) if case.answer["name"] == "set_timer")
    message = {"content": json.dumps({**case.answer, "name": name})}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}}
    found = read_reply(task, parse_mode(mode), case, answer, 0.5)
    assert set(found.shares.values()) == {float(right)} and len(found.shares) == 3


def test_an_overruled_token_loses_the_log_probability_of_the_one_that_the_model_liked_better() -> None:
    liked = {"logprob": -0.1, "top_logprobs": [{"logprob": -0.1}]}
    overruled = {"logprob": -5.0, "top_logprobs": [{"logprob": -0.5}]}
    assert preference([liked, overruled, overruled]) == (2, 9.0)
    assert preference([{"logprob": -5.0, "top_logprobs": []}]) == (None, None)


def test_a_mode_is_a_kind_with_fields_of_the_request() -> None:
    task = next(task for task in TASKS if task.name == "person")
    case = task.cases(1)[0]
    body = parse_mode("json_schema shown property_order=any logprobs=true").body(task, case)
    assert body is not None
    assert body["property_order"] == "any" and body["logprobs"] is True
    assert body["response_format"]["json_schema"]["schema"] == task.schema
    assert json.dumps(task.schema) in body["messages"][0]["content"]
    assert parse_mode("choice").body(task, case) is None
    assert all(parse_mode(text).kind in KINDS for text in DEFAULT_MODES)


@pytest.mark.parametrize("text", ["json", "regex style=wide"])
def test_a_mode_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_mode(text)


def test_the_interval_of_a_paired_difference() -> None:
    found = paired_difference([1, 1, 0, 1], [1, 0, 0, 0])
    assert found.mean == 0.5
    assert found.margin == pytest.approx(1.96 * (1 / 3) ** 0.5 / 2)
    assert found.sign == 0
    assert paired_difference([0.0] * 9, [1.0] * 8 + [0.0]).sign == -1
    assert paired_difference([1.0] * 9, [1.0] * 9) == (0, 0, 9)


def test_files_of_several_servers_are_compared_on_the_prompts_that_both_have(tmp_path: Path) -> None:
    ours = [reply("free", f"{number}", 1.0) for number in range(5)]
    ours += [reply("json_schema", f"{number}", number % 2) for number in range(4)]
    save(tmp_path / "ours", "ours", {"cases": 5}, ours)
    save(tmp_path / "peer", "peer", {"cases": 1}, [reply("free", "0", 0.0), reply("free", "9", 0.0)])
    files = load([tmp_path / "ours", tmp_path / "peer"])
    assert files["ours"] == ours
    lines = {line.split(" | ")[0][2:]: line for line in report(files, "ours: free").splitlines() if line}
    assert "75.0 (-25.0 ± 28.3)" in lines["ours: json_schema"]
    assert "**50.0 (-50.0 ± 0.0)**" in lines["peer: free"]


def test_a_request_that_failed_is_in_no_table() -> None:
    found = report({"ours": [reply("free", "0", 1.0), reply("choice", "0", 0.0, error="400: no")]}, "free")
    assert "choice" not in found
