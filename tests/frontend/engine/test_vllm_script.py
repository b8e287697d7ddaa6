"""A script written for vLLM runs when its import is changed."""

from __future__ import annotations

import ast
import copy
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import arbora
import pytest

HELLO = [{"role": "user", "content": "Hello"}]
SCRIPT = """
from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The president of the United States is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(model={model!r})
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {{prompt!r}}, Generated text: {{generated_text!r}}")
"""


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[arbora.LLM]:
    llm = arbora.LLM(model, device="cpu", kv_memory="4MiB", max_num_seqs=8)
    yield llm
    llm.engine.close()


def test_the_script_of_vllms_quickstart_runs_with_another_import(model: str) -> None:
    script = SCRIPT.format(model=model).replace("from vllm import", "from arbora import")
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "ARBORA_KV_MEMORY": "4MiB"}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300
    )
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith("Prompt: 'Hello, my name is', Generated text: ")
    assert second.startswith("Prompt: 'The president of the United States is', Generated text: ")
    # The script samples without a seed, and a reply whose first token ends it is empty.
    assert any(ast.literal_eval(line.partition("text: ")[2]) for line in (first, second))
    assert "2/2" in run.stderr


def test_outputs_have_vllms_fields(llm: arbora.LLM) -> None:
    params = arbora.SamplingParams(n=2, seed=1, logprobs=2, prompt_logprobs=1, max_tokens=5, ignore_eos=True)
    (output,) = llm.generate("Hello", params, use_tqdm=False)
    whole = llm.engine.generate("Hello", params.fields)
    assert list(output.prompt_token_ids) == llm.engine.tokenize("Hello")
    assert [each.text for each in output.outputs] == [choice.text for choice in whole.choices]
    first = output.outputs[0]
    assert (first.index, first.finish_reason, first.stop_reason) == (0, "length", None)
    assert first.logprobs is not None and output.prompt_logprobs is not None
    chosen = [
        each[token].logprob for each, token in zip(first.logprobs, first.token_ids, strict=True) if each
    ]
    assert first.cumulative_logprob == pytest.approx(sum(chosen))
    assert output.prompt_logprobs[0] is None
    assert {entry.rank for entry in output.prompt_logprobs[1].values()} <= {1, None}  # type: ignore[union-attr]


def test_sixteen_tokens_are_the_default_as_in_vllm(llm: arbora.LLM) -> None:
    ignoring = arbora.SamplingParams(ignore_eos=True)
    assert len(llm.generate("Hello", ignoring, use_tqdm=False)[0].outputs[0].token_ids) == 16


def test_fields_of_sampling_params_are_attributes(llm: arbora.LLM) -> None:
    params = llm.get_default_sampling_params()
    assert (params.max_tokens, params.temperature) == (16, None)
    params.max_tokens, params.ignore_eos, params.temperature = 3, True, 0
    assert repr(params) == "SamplingParams(max_tokens=3, ignore_eos=True, temperature=0)"
    assert len(llm.generate("Hello", params, use_tqdm=False)[0].outputs[0].token_ids) == 3
    assert copy.deepcopy(params).fields == params.fields
    with pytest.raises(TypeError, match="Did you mean temperature"):
        params.temprature = 1
    with pytest.raises(AttributeError, match="temprature"):
        print(params.temprature)


def test_prompts_come_in_vllms_forms(llm: arbora.LLM) -> None:
    params = arbora.SamplingParams(temperature=0, max_tokens=4)
    ids = llm.engine.tokenize("Hello")
    given: list[Any] = ["Hello", {"prompt": "Hello"}, {"prompt_token_ids": ids}, ids]
    texts = {output.outputs[0].text for output in llm.generate(given, params, use_tqdm=False)}
    texts |= {llm.generate(one, params, use_tqdm=False)[0].outputs[0].text for one in given}
    assert len(texts) == 1
    with pytest.raises(TypeError, match=r"prompts\[0\] has the keys \['multi_modal_data', 'prompt'\]"):
        llm.generate({"prompt": "a", "multi_modal_data": {}}, params)


def test_chats_take_one_conversation_or_several(llm: arbora.LLM) -> None:
    params = arbora.SamplingParams(temperature=0, max_tokens=4)
    (one,) = llm.chat(HELLO, params, use_tqdm=False)
    both = llm.chat([HELLO, HELLO], params, use_tqdm=False)
    assert [each.outputs[0].text for each in both] == [one.outputs[0].text] * 2
    (continued,) = llm.chat(
        [*HELLO, {"role": "assistant", "content": "I"}],
        params,
        use_tqdm=False,
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert len(continued.prompt_token_ids) == len(one.prompt_token_ids) + 1


def test_arguments_without_a_counterpart_are_refused_with_advice(llm: arbora.LLM) -> None:
    wrong: Any = {"guided_decoding": 1}
    with pytest.raises(TypeError, match="guided_decoding is no sampling option: use json_schema"):
        arbora.SamplingParams(**wrong)
    with pytest.raises(TypeError, match=r"unknown option 'max_modle_len'\. Did you mean max_model_len\?"):
        arbora.LLM("model", max_modle_len=5)
    mapping: Any = {"max_tokens": 3}
    with pytest.raises(TypeError, match="but must be a SamplingParams, or one for each prompt"):
        llm.generate("Hello", mapping)


def test_each_prompt_may_have_its_own_params(llm: arbora.LLM) -> None:
    lengths = [arbora.SamplingParams(max_tokens=most, ignore_eos=True) for most in (2, 5)]
    outputs = llm.generate(["Hello", "Hello"], lengths, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    chats = llm.chat([HELLO, HELLO], lengths, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in chats] == [2, 5]
    with pytest.raises(TypeError, match="sampling_params has 2 entries for 1 prompts: give one for all"):
        llm.generate(["Hello"], lengths)
    with pytest.raises(TypeError, match="sampling_params has 2 entries for 1 conversations"):
        llm.chat(HELLO, lengths)


def test_a_refused_call_uses_no_seeds(model: str) -> None:
    llm = arbora.LLM(model, seed=0, device="cpu", kv_memory="4MiB")
    params = arbora.SamplingParams(temperature=1, max_tokens=8, ignore_eos=True)
    try:
        with pytest.raises(TypeError, match="3 entries for 1 prompts"):
            llm.generate(["Hello"], [params] * 3, use_tqdm=False)
        (output,) = llm.generate(["Hello"], params, use_tqdm=False)
        expected = random.Random(0).getrandbits(48)
        assert (
            output.outputs[0].text == llm.engine.generate("Hello", {**params.fields, "seed": expected}).text
        )
    finally:
        llm.engine.close()


def test_each_output_has_a_request_id_of_its_own(llm: arbora.LLM) -> None:
    params = arbora.SamplingParams(max_tokens=1)
    outputs = llm.generate(["a", "b"], params, use_tqdm=False) + llm.chat(HELLO, params, use_tqdm=False)
    first = int(outputs[0].request_id)
    assert [output.request_id for output in outputs] == [str(first + place) for place in range(3)]


def test_vllms_defaults_are_ignored_and_a_seed_repeats_a_script(model: str) -> None:
    def script(seed: int) -> list[str]:
        llm = arbora.LLM(
            model,
            seed=seed,
            gpu_memory_utilization=0.9,
            tensor_parallel_size=1,
            trust_remote_code=False,
            swap_space=4,
            device="cpu",
            kv_memory="4MiB",
        )
        params = arbora.SamplingParams(temperature=1, max_tokens=12, ignore_eos=True)
        try:
            outputs = llm.generate(["Hello"] * 3, params, use_tqdm=False)
        finally:
            llm.engine.close()
        return [output.outputs[0].text for output in outputs]

    first = script(0)
    assert len(set(first)) == 3
    assert script(0) == first
    assert script(1) != first
