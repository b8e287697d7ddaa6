"""The paths that describe the model, those that are not served, and the checks that all APIs share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import ollama
import pytest
import pytest_asyncio
from arbora.frontend.api.ollama.model_files import ModelFiles
from arbora.frontend.api.ollama.routes import NOT_SERVED
from arbora.runtime.config import BUILTIN_MODEL, ServeConfig
from checkpoints import random_model
from gguf import GGMLQuantizationType as Type
from gguf_models import SHAPE, add_tensors, finish_file, one_type, q4_k_m, start_file, write_gguf
from http_world import MODEL
from ollama_world import HELLO, TEMPLATE, OllamaWorld, ollama_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[OllamaWorld]:
    async with ollama_world(more_model_names=("b:7b",)) as world:
        yield world


async def test_all_names_are_listed_with_a_tag(world: OllamaWorld) -> None:
    models = (await world.client.list()).models
    assert [model.model for model in models] == [f"{MODEL}:latest", "b:7b"]
    for model in models:
        assert (await world.generate(model=model.model)).model == model.model


async def test_a_model_is_shown_with_its_template_context_and_capabilities(world: OllamaWorld) -> None:
    shown = await world.client.show(f"{MODEL}:latest")
    assert shown.template == TEMPLATE
    (length,) = (value for name, value in (shown.modelinfo or {}).items() if name.endswith(".context_length"))
    assert length == world.http_world.context_length
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert (await world.post("/api/show", name=MODEL)).status_code == 200
    with pytest.raises(ollama.ResponseError) as caught:
        await world.client.show("other")
    assert caught.value.status_code == 404


async def test_the_loaded_model_runs(world: OllamaWorld) -> None:
    running = (await world.client.ps()).models
    assert [model.name for model in running] == [f"{MODEL}:latest", "b:7b"]
    assert running[0].context_length == world.http_world.context_length


async def test_no_model_runs_before_it_is_loaded() -> None:
    async with ollama_world(replica=False) as world:
        assert (await world.client.ps()).models == []
        assert len((await world.client.list()).models) == 1
        assert (await world.post("/api/chat", messages=HELLO)).status_code == 503


async def test_the_version_is_one_that_clients_can_compare(world: OllamaWorld) -> None:
    body = (await world.http_world.http.get("/api/version")).json()
    assert all(part.isdigit() for part in body["version"].split("."))


async def test_the_files_of_the_built_in_model_say_its_size() -> None:
    config = ServeConfig(model=BUILTIN_MODEL, served_model_name="a")
    files = ModelFiles.read(config)
    weights = list(Path(BUILTIN_MODEL).glob("*.safetensors"))
    assert files.size == sum(path.stat().st_size for path in weights)
    assert len(files.digest) == 64 and files.modified.year >= 2025
    settings = json.loads((BUILTIN_MODEL / "config.json").read_text())
    assert files.info[f"{files.details.family}.block_count"] == settings["num_hidden_layers"]
    parameters = files.info["general.parameter_count"]
    assert isinstance(parameters, int) and files.size / 4 <= parameters <= files.size / 2


async def test_a_gguf_file_says_its_family_parameters_and_quantization(tmp_path: Path) -> None:
    model = tmp_path / "gguf"
    model.mkdir()
    weights = write_gguf(model / "small.gguf", "llama", one_type(Type.Q8_0))
    files = ModelFiles.read(ServeConfig(model=model, served_model_name="a"))
    details = files.details
    assert (details.format, details.family, details.families) == ("gguf", "llama", ["llama"])
    assert details.quantization_level == "Q8_0"
    parameters = sum(weight.numel() for weight in weights.parameters())
    assert files.info["general.parameter_count"] == parameters
    assert details.parameter_size == f"{parameters / 1e6:.1f}M"
    assert files.info["llama.block_count"] == SHAPE["num_hidden_layers"]
    assert not any(key.startswith(".") for key in files.info)


@pytest.mark.parametrize(("file_type", "name"), [(15, "Q4_K_M"), (7, "Q8_0"), (999, "Q4_K")])
async def test_a_gguf_file_names_its_mixture_of_quantizations_by_its_file_type(
    tmp_path: Path, file_type: int, name: str
) -> None:
    model = random_model("llama", **SHAPE)
    writer = start_file(tmp_path / "small.gguf", model)
    writer.add_file_type(file_type)
    writer.add_chat_template("a template")
    add_tensors(writer, model, q4_k_m)
    finish_file(writer)
    files = ModelFiles.read(ServeConfig(model=tmp_path, served_model_name="a"))
    assert files.details.quantization_level == name
    assert files.info["general.file_type"] == file_type and "tokenizer.chat_template" not in files.info


async def test_a_model_without_model_type_has_its_architectures_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3})
    )
    files = ModelFiles.read(ServeConfig(model=tmp_path, served_model_name="a"))
    assert files.details.family == "qwen2" and files.info["qwen2.block_count"] == 3


@pytest.mark.parametrize(("method", "path"), NOT_SERVED)
async def test_other_paths_of_ollamas_api_say_why_they_are_not_served(
    world: OllamaWorld, method: str, path: str
) -> None:
    answer = await world.http_world.http.request(method, path, json={"model": MODEL})
    assert (answer.status_code, answer.json()["code"]) == (400, "not_served")
    assert path in answer.json()["error"]


async def test_errors_have_ollamas_form_on_every_path_below_api(world: OllamaWorld) -> None:
    answer = await world.http_world.http.get("/api/nothing")
    assert answer.status_code == 404 and isinstance(answer.json()["error"], str)
