"""Trains the built-in model from random weights on text that it generates itself, on the CPU.

    PYTHONPATH=bench python -P -m train_builtin.train --work build/builtin --out runtime/model/builtin

A checkpoint is written every few minutes; the same command resumes from it. Batches and starting weights
depend on the seed alone. The workers are processes of one thread each that add up their gradients once a
step: on a busy machine that is several times faster than threads that wait for each other in every operation.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.optim import AdamW, Muon, Optimizer

from .batches import Batch, make_batches
from .mixture import stage_at
from .model import Decoder, Shape, export
from .tokenizer import END, PAD, write_tokenizer

WARM_UP_STEPS = 60
FINAL_SHARE = 0.35
"""The learning rate falls linearly to zero over this last part of the run."""
MUON_RATE, ADAM_RATE = 5e-3, 4e-3


def main() -> None:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / "checkpoint.pt").exists():
        write_tokenizer(options.out)
    with tempfile.TemporaryDirectory() as meeting:
        arguments = (options, f"file://{meeting}/workers")
        spawn(work, arguments, nprocs=options.workers)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train Arbora's built-in model.")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the model in Hugging Face's layout"
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--step-tokens", type=int, default=4096, help="tokens of an optimizer step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes, one for each core")
    parser.add_argument("--save-seconds", type=float, default=180.0)
    return parser.parse_args()


def make_optimizers(model: Decoder) -> list[Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        Muon(matrices, lr=MUON_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_at(step: int, steps: int) -> float:
    """The share of the full learning rate: linear warm-up, constant, linear decay."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, (steps - step) / (FINAL_SHARE * steps))


def work(worker: int, options: argparse.Namespace, meeting: str) -> None:
    """One worker's whole run; worker 0 also prints and saves."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=worker, world_size=options.workers)
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    torch.manual_seed(options.seed)
    model = Decoder(Shape())
    optimizers = make_optimizers(model)
    base_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    start = _resume(options.work / "checkpoint.pt", model, optimizers)
    for layer in model.layers:
        layer.compile(dynamic=True)
    began = saved = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        prepared = pool.submit(_prepare, tokenizer, options, worker, start)
        for step in range(start, options.steps):
            batches = prepared.result()
            prepared = pool.submit(_prepare, tokenizer, options, worker, step + 1)
            for optimizer, base in zip(optimizers, base_rates, strict=True):
                optimizer.param_groups[0]["lr"] = base * rate_at(step, options.steps)
            loss = _optimize(model, optimizers, batches)
            now = time.monotonic()
            if worker == 0 and step % 10 == 0:
                speed = (step + 1 - start) * options.step_tokens / (now - began)
                print(f"step {step} loss {loss:.4f} tokens/s {speed:.0f}", flush=True)
            if worker == 0 and (now - saved > options.save_seconds or step == options.steps - 1):
                _save(model, optimizers, step + 1, options)
                saved = now
    dist.destroy_process_group()


def _prepare(tokenizer: Tokenizer, options: argparse.Namespace, worker: int, step: int) -> list[Batch]:
    seed = f"train/{options.seed}/{step}/{worker}"
    stage = stage_at(step / options.steps)
    return make_batches(seed, tokenizer, stage, options.step_tokens // options.workers)


def _optimize(model: Decoder, optimizers: list[Optimizer], batches: list[Batch]) -> float:
    """One optimizer step over all workers' batches; returns the mean loss per unit of weight."""
    losses = []
    for batch in batches:
        loss = batch_loss(model, batch)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
    weight = torch.stack([batch.weights.sum() for batch in batches]).sum()
    mean = _average_gradients(model, torch.stack(losses).sum(), weight)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return mean


def _average_gradients(model: Decoder, loss: Tensor, weight: Tensor) -> float:
    """Replaces each worker's gradient by that of the mean loss over all workers; returns the mean loss."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([loss.view(1), weight.view(1), *(g.view(-1) for g in gradients)])
    dist.all_reduce(flat)
    mean = flat / flat[1]
    parts = torch.split(mean[2:], [g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return mean[0].item()


def batch_loss(model: Decoder, batch: Batch) -> Tensor:
    wanted = batch.weights > 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(batch.tokens[:, :-1])
        logits = model.logits(hidden[wanted])
    losses = F.cross_entropy(logits.float(), batch.tokens[:, 1:][wanted], reduction="none")
    return (losses * batch.weights[wanted]).sum()


def _save(model: Decoder, optimizers: list[Optimizer], step: int, options: argparse.Namespace) -> None:
    state = {
        "step": step,
        "shape": dataclasses.asdict(model.shape),
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    partial = options.work / "checkpoint.partial"
    torch.save(state, partial)
    partial.replace(options.work / "checkpoint.pt")
    export(model.state_dict(), model.shape, options.out, PAD, END)


def _resume(checkpoint: Path, model: Decoder, optimizers: list[Optimizer]) -> int:
    """Loads the checkpoint if there is one; returns the step to carry on with."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint)
    assert state["shape"] == dataclasses.asdict(model.shape), f"{checkpoint} was made for another shape"
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


if __name__ == "__main__":
    main()
