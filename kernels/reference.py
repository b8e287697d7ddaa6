"""Every operation in plain PyTorch: the definition that the tests compare the kernels with. It is slow."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from .attention.batch import FULL_REACH, AttentionBatch, Reach
from .elementwise import HeadNorms
from .pages.cells import CellFormat
from .pages.segments import gather_pages, set_pages


def paged_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    reach: Reach = FULL_REACH,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    outputs = []
    start = 0
    for row, count in enumerate(batch.query_lengths.tolist()):
        length = int(batch.kv_lengths[row])
        keys, values = _row_kv(kv, batch, row, length, q.shape[2])
        of_row = slice(start, start + count)
        scores = _scores(q[of_row], keys, scale, softcap)
        scores[:, ~_visible(count, length, reach, q.device)] = float("-inf")
        outputs.append(_mix(scores, values, sinks).to(q.dtype))
        start += count
    return torch.cat(outputs) if outputs else torch.empty_like(q)


def _row_kv(
    kv: torch.Tensor, batch: AttentionBatch, row: int, length: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a row, each float64 [kv_heads, length, head_dim]."""
    pages = -(-length // batch.page_size)
    table = torch.from_numpy(batch.page_tables[row][:pages]).to(kv.device, torch.int64)
    cells = gather_pages(kv, table, batch.page_size).flatten(2, 3)[:, :, :length]
    keys, values = CellFormat(kv.dtype).decode(cells, head_dim, torch.float64)
    return keys, values


def _scores(q: torch.Tensor, keys: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    """float64 [heads, count, length]"""
    keys = keys.repeat_interleave(q.shape[1] // len(keys), dim=0)
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _visible(count: int, length: int, reach: Reach, device: torch.device) -> torch.Tensor:
    """Which keys each of a row's query tokens sees, bool [count, length]."""
    query = torch.arange(length - count, length, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    visible = key <= query
    if reach.window is not None:
        visible &= key > query - reach.window
    if reach.chunk is not None:
        visible &= key >= query // reach.chunk * reach.chunk
    return visible


def _mix(scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The values weighted by the softmax of the scores, float64 [count, heads, head_dim]."""
    heads, count, _ = scores.shape
    values = values.repeat_interleave(heads // len(values), dim=0)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.double().view(heads, 1, 1).expand(-1, count, 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    return (weights @ values).transpose(0, 1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * normal.to(weight.dtype)).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    multiplier: float = 1.0,
    own_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    added = x if own_weight is None else rms_norm(x, own_weight, eps)
    residual.add_(added * multiplier)
    return rms_norm(residual, weight, eps)


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    kv: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    queries, keys = q.float(), k.float()
    if norms is not None:
        queries = rms_norm(queries, norms.q, norms.eps)
        keys = rms_norm(keys, norms.k, norms.eps)
    kept = places >= 0
    q[kept] = _rotate(queries, cos, sin).to(q.dtype)[kept]
    both = torch.stack((_rotate(keys, cos, sin), v.float()))[:, kept].transpose(1, 2)
    set_pages(kv, places[kept], CellFormat(kv.dtype).encode(both).unsqueeze(3))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def clamp_and_gate(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(gate_up.dtype)


def choose_experts(logits: torch.Tensor, k: int, renormalizes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers and the shares, [tokens, k], of each token's experts."""
    largest, numbers = logits.float().sort(dim=-1, descending=True, stable=True)
    shares = (largest[:, :k] if renormalizes else largest).softmax(-1)[:, :k]
    return numbers[:, :k], shares


def run_experts(
    x: torch.Tensor,
    first: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    second: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    activation: Callable[[torch.Tensor], torch.Tensor],
    experts: torch.Tensor,
    shares: torch.Tensor,
) -> torch.Tensor:
    """first, second: the products of each expert"""
    out = torch.zeros(x.shape)
    for token, (numbers, factors) in enumerate(zip(experts.tolist(), shares.tolist(), strict=True)):
        for number, factor in zip(numbers, factors, strict=True):
            if number < len(first):
                out[token] += (
                    factor * second[number](activation(first[number](x[token : token + 1])))[0].float()
                )
    return out.to(x.dtype)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    # In float32 PyTorch subtracts nearly equal numbers far below 0.
    return F.gelu(gate.double(), approximate="tanh").to(gate.dtype) * up


def scale_and_cap(
    x: torch.Tensor, factor: float, softcap: float | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    scaled = x.double() * factor
    return (scaled if softcap is None else softcap * torch.tanh(scaled / softcap)).to(dtype or x.dtype)


def copy_pages(
    kvs: Sequence[torch.Tensor], page_size: int, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    for kv in kvs:
        cells = kv.view(torch.int8)
        set_pages(cells, torch.tensor(destinations), gather_pages(cells, torch.tensor(sources), page_size))


def save_pages(
    kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
) -> None:
    """The result of `pages.PageMoves.save`."""
    page_size = memory.shape[3] // kvs[0].shape[4]
    for layer, kv in enumerate(kvs):
        cells = gather_pages(kv, torch.tensor(pages), page_size)
        memory[list(places), layer] = cells.permute(2, 0, 1, 3, 4).flatten(1, 2).flatten(2)


def load_pages(
    kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
) -> None:
    """The result of `pages.PageMoves.load` for all layers."""
    for layer, kv in enumerate(kvs):
        cells = memory[list(places), layer].view(len(places), *kv.shape[:2], -1, kv.shape[4])
        set_pages(kv, torch.tensor(pages), cells.permute(1, 2, 0, 3, 4))
