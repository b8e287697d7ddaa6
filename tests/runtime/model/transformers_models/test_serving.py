"""Serving models by transformers' code: their tokens, the formats of their weights, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.kernels.experts import Experts
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import RowGroup
from arbora.runtime.model.decoder import Decoder
from arbora.runtime.model.transformers_models import description
from arbora.runtime.model.transformers_models.architecture import TransformersArchitecture
from arbora.runtime.model.transformers_models.experts import is_experts
from arbora.runtime.model.transformers_models.model import TransformersModel
from arbora.runtime.model.transformers_models.modules import StoredEmbedding
from arbora.runtime.model.weight_formats import Checkpoint
from checkpoints import change_tensor, edit_config
from paged_rows import PagedRows, differences
from step_driver import GREEDY, StepDriver, refusal
from tiny_models import LAYERS, VOCABULARY, tiny_config, tiny_model
from transformers import PreTrainedModel
from transformers_oracle import expected_greedy

KINDS = {
    "windows": "gemma3_text",
    "soft caps": "gemma2",
    "sinks and experts": "gpt_oss",
    "chunked attention": "llama4_text",
    "stacked experts": "qwen3_moe",
    "joined projections": "phi3",
    "transposed weights, learned positions": "gpt2",
    "one KV head": "gpt_bigcode",
    "latent keys": "deepseek_v3",
    "layers of several shapes": "gemma4_text",
}
PROMPT = torch.randint(3, VOCABULARY, (45,), generator=torch.Generator().manual_seed(3)).tolist()
OTHER = torch.randint(3, VOCABULARY, (21,), generator=torch.Generator().manual_seed(4)).tolist()


def save_tiny(model_type: str, directory: Path, **saving: object) -> PreTrainedModel:
    config = tiny_config(model_type)
    model = tiny_model(config)
    model.save_pretrained(directory, **saving)
    return model


@pytest.mark.parametrize("model_type", KINDS.values(), ids=KINDS)
def test_tokens_equal_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    """Two prompts in chunks beside each other, one that continues the pages of another, and grouped rows."""
    model = save_tiny(model_type, tmp_path)
    driver = StepDriver.load(tmp_path, model_impl="transformers", page_size=4)
    for slot in range(3):
        driver.start(slot, GREEDY)
    outputs = {0: [driver.prefill(0, PROMPT, chunk=7)], 1: [driver.prefill(1, OTHER, chunk=100)]}
    driver.share(2, 0, 40)
    outputs[2] = [driver.prefill(2, PROMPT[40:])]
    for _ in range(12):
        groups = [RowGroup(first_row=0, rows=2, shared_tokens=40)]
        for slot, token in zip((0, 2, 1), driver.decode([0, 2, 1], groups), strict=True):
            outputs[slot].append(token)
    assert outputs[0] == outputs[2]
    for slot, prompt in ((0, PROMPT), (1, OTHER)):
        assert outputs[slot] == expected_greedy(model, prompt, outputs[slot])


def test_our_own_code_computes_the_models_that_it_knows(tmp_path: Path) -> None:
    save_tiny("qwen3", tmp_path / "known")
    save_tiny("olmo2", tmp_path / "other")
    assert isinstance(StepDriver.load(tmp_path / "known").runner._model, Decoder)
    assert isinstance(StepDriver.load(tmp_path / "other").runner._model, TransformersModel)
    assert isinstance(
        StepDriver.load(tmp_path / "known", model_impl="transformers").runner._model, TransformersModel
    )
    assert "Olmo2ForCausalLM is not supported" in refusal(tmp_path / "other", model_impl="native")


@pytest.mark.parametrize("method", ["int8", "int4", "fp8"])
def test_quantized_weights_are_multiplied_by_our_products(method: str, tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    exact, rounded = (
        StepDriver.load(tmp_path, dtype="bfloat16", quantize=chosen).runner._model
        for chosen in (None, method)
    )
    assert isinstance(exact, TransformersModel) and isinstance(rounded, TransformersModel)
    hidden = torch.randn(3, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    products = list(zip(exact.products(), rounded.products(), strict=True))
    assert len(products) == 4 * 7 + 1
    for wide, narrow in products:
        if wide.in_features == 64:
            expected, found = wide(hidden).float(), narrow(hidden).float()
            assert torch.cosine_similarity(expected, found).min() > 0.97
            assert not torch.equal(expected, found)


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2"])
def test_memory_has_a_tied_weight_once(model_type: str, tmp_path: Path) -> None:
    """The embedding of Gemma scales its rows."""
    model = save_tiny(model_type, tmp_path).to(torch.bfloat16)
    loaded = StepDriver.load(tmp_path, dtype="bfloat16", model_impl="transformers").runner._model
    assert isinstance(loaded, TransformersModel)
    base = loaded._model.base
    assert isinstance(base, PreTrainedModel)
    embedding = base.get_input_embeddings()
    assert isinstance(embedding, StoredEmbedding)
    ids = torch.tensor([[5, 0, 127]])
    assert torch.equal(embedding(ids), model.get_input_embeddings()(ids))


def test_a_checkpoint_in_several_files_is_loaded(tmp_path: Path) -> None:
    model = save_tiny("olmo2", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    driver = StepDriver.load(tmp_path)
    driver.start(0, GREEDY)
    output = [driver.prefill(0, PROMPT)]
    assert output == expected_greedy(model, PROMPT, output)


def test_positions_that_change_in_a_long_context_end_before_it(tmp_path: Path) -> None:
    save_tiny("phi3", tmp_path)
    factors = [1.0] * 8
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": factors, "long_factor": factors}
    edit_config(tmp_path, rope_parameters=rope, original_max_position_embeddings=64)
    assert StepDriver.load(tmp_path).ready.max_model_len == 64


def test_deterministic_results_are_refused(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    assert refusal(tmp_path, deterministic=True).startswith(
        "--deterministic: olmo2 is computed by transformers"
    )


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    change_tensor(tmp_path, "model.layers.1.mlp.up_proj.weight", None)
    assert refusal(tmp_path).endswith(
        "model.layers.1.mlp.up_proj.weight [96, 64] of F32, F16, BF16 is missing."
    )


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    change_tensor(tmp_path, "model.layers.0.self_attn.q_norm.weight", torch.ones(3))
    assert "model.layers.0.self_attn.q_norm.weight: expected [64]" in refusal(tmp_path)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    for name in ("gate", "up", "down"):
        change_tensor(tmp_path, f"model.layers.2.mlp.experts.3.{name}_proj.weight", None)
    told = refusal(tmp_path, model_impl="transformers")
    assert told.endswith("experts.down_proj needs 4 experts, but 3 are stored.")


@pytest.mark.parametrize("method", [None, "int8", "int4"])
def test_each_expert_gets_a_product(method: str | None, tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    fields = {"dtype": "bfloat16", "quantize": method, "model_impl": "transformers"}
    model = StepDriver.load(tmp_path, **fields).runner._model
    assert isinstance(model, TransformersModel)
    experts = [module for module in model._model.modules() if is_experts(module)]
    assert len(experts) == LAYERS
    for module in experts:
        products: Any = module.expert_products
        assert isinstance(products, Experts)
        of_experts: Any = (products.first, products.second)
        assert [each.out_features for each in of_experts[0]] == [64] * 4
        assert [each.out_features for each in of_experts[1]] == [64] * 4
        assert not list(module.parameters())


def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    edit_config(
        tmp_path,
        model_type="unheard_of",
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    )
    (tmp_path / "code.py").write_text("raise SystemExit('code of the model was run')")
    assert "transformers can't read it" in refusal(tmp_path)


def test_a_model_that_needs_the_prompt_at_once_is_refused_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library to come may have layers with states that the description does not recognise."""
    monkeypatch.setattr(description, "_OWN_STATES", ())
    save_tiny("minimax", tmp_path)
    assert "gives other results if a prompt is computed in several steps" in refusal(tmp_path)


def test_a_tied_weight_may_be_stored_under_either_name(tmp_path: Path) -> None:
    model = save_tiny("olmo2", tmp_path)
    weight = model.get_input_embeddings().weight.data
    edit_config(tmp_path, tie_word_embeddings=True)
    change_tensor(tmp_path, "model.embed_tokens.weight", None)
    change_tensor(tmp_path, "lm_head.weight", weight.contiguous())
    loaded = StepDriver.load(tmp_path).runner._model
    assert isinstance(loaded, TransformersModel) and isinstance(loaded._model.base, PreTrainedModel)
    ids = torch.tensor([[5, 0, 127]])
    assert torch.equal(loaded._model.base.get_input_embeddings()(ids), weight[ids])


def test_a_tied_head_with_a_bias_is_served_beside_quantized_weights(tmp_path: Path) -> None:
    save_tiny("ctrl", tmp_path)
    StepDriver.load(tmp_path, dtype="bfloat16", quantize="int8")


def test_weights_that_are_split_keep_their_biases(tmp_path: Path) -> None:
    config = tiny_config("sarvam_moe")
    config.attention_bias = True
    model = tiny_model(config)
    model.save_pretrained(tmp_path)
    driver = StepDriver.load(tmp_path)
    driver.start(0, GREEDY)
    output = [driver.prefill(0, PROMPT)]
    assert output == expected_greedy(model, PROMPT, output)


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [({"new_decoder_architecture": True, "num_kv_heads": 2}, 2), ({"multi_query": False}, 4)],
    ids=["grouped heads", "as many KV heads"],
)
def test_falcons_with_several_kv_heads_are_served(
    fields: dict[str, Any], kv_heads: int, tmp_path: Path
) -> None:
    config = tiny_config("falcon")
    config.update(fields)
    reference = tiny_model(config)
    reference.save_pretrained(tmp_path)
    model = StepDriver.load(tmp_path, quantize=None).runner._model
    assert max(differences(reference, PagedRows(model))) < 5e-5
    assert model.config.cache_spec.kv_heads == kv_heads
    assert len(model.products()) == 4 * LAYERS + 1


def test_a_falcon_with_a_bias_by_distance_is_refused(tmp_path: Path) -> None:
    save_tiny("falcon", tmp_path)
    edit_config(tmp_path, alibi=True)
    assert "adds a bias that depends on the distance of tokens" in refusal(tmp_path)


def test_an_encoder_of_images_is_not_loaded(tmp_path: Path) -> None:
    config = tiny_config("gemma3")
    tiny_model(config).save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    architecture = TransformersArchitecture.open(tmp_path)
    assert architecture.config.unused == ("model.vision_tower",)
    projections = architecture.projections(Checkpoint(tmp_path))
    assert projections and not any("vision_tower" in each.name for each in projections)


def test_a_weight_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    save_tiny("olmo2", tmp_path)
    change_tensor(tmp_path, "model.norm.weight", torch.full((64,), torch.nan))
    assert "tensor model.norm.weight has values that are NaN or infinite" in refusal(tmp_path)


@pytest.mark.parametrize(
    "fields", [{"hidden_size": "wide"}, {"num_attention_heads": 0}, {"layer_types": ["full_attention"]}]
)
def test_a_config_that_transformers_cant_use_is_refused(fields: dict[str, object], tmp_path: Path) -> None:
    save_tiny("gemma3_text", tmp_path)
    edit_config(tmp_path, **fields)
    assert refusal(tmp_path).startswith(f"{tmp_path / 'config.json'}: ")


def test_a_description_is_equal_in_each_process(tmp_path: Path) -> None:
    """It is a part of the keys of pages on disk, so it may not have the order of a set."""
    save_tiny("hunyuan_v1_moe", tmp_path)
    readers = TransformersArchitecture.open(tmp_path).config.weight_readers
    assert len(readers) > 1 and list(readers) == sorted(readers)


@pytest.mark.parametrize(
    ("model_type", "problem"),
    [("mimo_v2_flash", "query and KV heads"), ("gemma4_text", "heads of 640 numbers, .* at most 256")],
)
def test_a_gpu_refuses_heads_that_its_kernels_lack(model_type: str, problem: str, tmp_path: Path) -> None:
    tiny_config(model_type).save_pretrained(tmp_path)
    if model_type == "gemma4_text":
        edit_config(tmp_path, per_layer_config={"1": {"head_dim": 640}, "3": {"head_dim": 640}})
    architecture = TransformersArchitecture.open(tmp_path)
    architecture.check_options(torch.device("cpu"), deterministic=False)
    with pytest.raises(ConfigError, match=problem):
        architecture.check_options(torch.device("cuda"), deterministic=False)
