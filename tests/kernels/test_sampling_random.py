"""The random numbers of sampling: their bits, their distribution, and what they depend on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from arbora.kernels.sampling import philox, sample
from numba_probe import gumbel_with_numba, philox_with_numba
from sampling_cases import SAMPLERS, batch
from triton_probe import gumbel_with_triton, reached_with_triton, words_with_triton

# Counter, key and output of philox4x32 with 10 rounds in Random123's kat_vectors.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def philox_with_numpy(counter: list[int], seed: int) -> list[int]:
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    words: list[int] = philox.philox4x32(np.array(counter, np.uint32), key).tolist()
    return words


@pytest.mark.parametrize("words", [philox_with_numpy, philox_with_numba])
@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(
    words: Callable[[list[int], int], list[int]], counter: str, key: str, output: str
) -> None:
    low, high = (int(word, 16) for word in key.split())
    got = words([int(word, 16) for word in counter.split()], high << 32 | low)
    assert got == [int(word, 16) for word in output.split()]


@pytest.mark.parametrize("seed", [0, 99, 0x299F31D0A4093822, 2**63 - 1, -1])
@pytest.mark.parametrize("position", [0, 7, 2**31 - 1])
def test_triton_draws_the_words_of_numpy(seed: int, position: int) -> None:
    assert words_with_triton(seed, position, 64) == philox.first_words(seed, position, np.arange(64)).tolist()


def test_a_word_may_reach_its_noise_and_not_much_more() -> None:
    generator = torch.Generator().manual_seed(6)
    words = torch.cat(
        [torch.randint(1 << bits, (32,), generator=generator) for bits in range(2, 32, 2)]
        + [
            torch.randint(1 << 32, (16,), generator=generator),
            torch.arange(8),
            (1 << 32) - 1 - torch.arange(8),
        ]
    )
    assert len(words) == 512
    assert all(reached_with_triton(words, 0.0))
    rare = (words > 1 << 14) & (words < 1 << 24)
    assert not any(reached_with_triton(words.where(rare, 1 << 20), 0.01))


def test_noise_has_the_same_bits_on_cpu_and_triton() -> None:
    words = philox.first_words(99, 7, np.arange(256))
    assert gumbel_with_numba(words) == gumbel_with_triton(99, 7, 256)


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [({}, range(8)), ({"top_k": 4}, range(4, 8)), ({"min_p": 0.4, "temperature": 2.0}, range(1, 8))],
    ids=["all tokens", "top-k", "min-p"],
)
def test_tokens_are_drawn_with_their_probabilities(parameters: dict[str, Any], kept: range) -> None:
    logits = torch.tensor([-3.0, 0.2, 0.3, 0.4, 0.5, 0.9, 1.4, 2.0])
    rows, calls = 1000, 100
    drawn = torch.zeros(8)
    for call in range(calls):
        made = batch(rows, seed=list(range(call * rows, call * rows + rows)), position=3, **parameters)
        drawn += torch.bincount(sample(logits.expand(rows, 8), made).tokens, minlength=8)
    expected = torch.zeros(8)
    tempered = logits[kept.start :] / parameters.get("temperature", 1.0)
    expected[kept.start :] = torch.softmax(tempered, 0) * rows * calls
    assert drawn[: kept.start].sum() == 0
    statistic = ((drawn - expected) ** 2 / expected)[kept.start :].sum()
    # Chi-square's critical values at p = 0.001.
    assert statistic < {4: 16.266, 7: 22.458, 8: 24.322}[len(kept)]


def test_positions_draw_independently() -> None:
    rows = 20_000
    made = [batch(rows, seed=list(range(rows)), position=at) for at in (0, 1)]
    first, second = (sample(torch.zeros(rows, 2), each).tokens for each in made)
    pairs = torch.bincount(2 * first + second, minlength=4)
    assert ((pairs - rows / 4) ** 2 / (rows / 4)).sum() < 16.266


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_token_depends_on_seed_and_position_not_on_batch_or_row(name: str) -> None:
    sampler = SAMPLERS[name]
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(5, 200, generator=generator)
    seeds, positions = [5, 2**63 - 1, -1, 7, 0], [0, 3, 2**31 - 1, 9, 1]
    together = sampler(logits, batch(5, seed=seeds, position=positions), None).tokens
    order = [3, 0, 4, 2, 1]
    shuffled = sampler(
        logits[order],
        batch(5, seed=[seeds[i] for i in order], position=[positions[i] for i in order]),
        None,
    ).tokens
    assert shuffled.tolist() == together[order].tolist()
    for row in range(5):
        alone = sampler(logits[row : row + 1], batch(seed=seeds[row], position=positions[row]), None).tokens
        assert alone.tolist() == [together[row]]


def test_all_64_bits_of_the_seed_count() -> None:
    rows = 64
    logits = torch.zeros(rows, 1000)
    seeds = [1 << bit if bit < 63 else -(1 << 63) for bit in range(rows)]
    assert len(set(sample(logits, batch(rows, seed=seeds)).tokens.tolist())) > 50


def test_padding_the_vocabulary_with_masked_tokens_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(20, 100, generator=generator)
    padded = torch.cat([logits, torch.full((20, 60), -torch.inf)], dim=1)
    made = batch(20, seed=list(range(20)), top_p=0.95)
    assert torch.equal(sample(logits, made).tokens, sample(padded, made).tokens)
