"""Arithmetic of sampling for Triton; each operation rounds as in `math_cpu`.

Launch with enable_fp_fusion=False, so that no product is fused with a sum.
"""

import triton
import triton.language as tl

KEY_OF_INFINITY = tl.constexpr(0x7F800000)
KEY_OF_MINUS_INFINITY = tl.constexpr(-0x7F800001)
KEY_OF_NOTHING = tl.constexpr(-0x80000000)
"""a key below the key of every number"""
KEY_STEP_0, KEY_STEP_1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)
SQRT_HALF = tl.constexpr(0.70710678)


@triton.jit
def order_key(x):
    """An int32 key that orders as the float32 x does (-0 as +0)."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of_key(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def random_word(seed, position, tokens):
    """The first word of Philox4x32-10 (see `philox`) for counter (position, token, 0, 0), uint32."""
    zero = tokens * 0
    c0, c1, c2, c3 = (
        (zero + position).to(tl.uint32),
        tokens.to(tl.uint32),
        zero.to(tl.uint32),
        zero.to(tl.uint32),
    )
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        # A 64-bit product is one instruction; computing its halves separately would take two.
        a, b = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c2 = (b >> 32).to(tl.uint32) ^ c1 ^ k0, (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = b.to(tl.uint32), a.to(tl.uint32)
        k0, k1 = k0 + KEY_STEP_0, k1 + KEY_STEP_1
    return c0


@triton.jit
def gumbel(word):
    """-log(-log(1 - u)) for u = (word + 0.5) / 2^32: a smaller word gives larger noise."""
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = ((0xFFFFFFFF - word).to(tl.uint32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    exponent, centred = _split(rest)
    near_one = rest > SQRT_HALF
    exponential = -_log_of(tl.where(near_one, -u, centred), tl.where(near_one, 0.0, exponent))
    return -log(exponential)


@triton.jit
def may_reach(word, noise):
    """Whether `gumbel(word)` may be at least `noise`. False is exact, True an estimate.

    -log(1 - u) ≥ u, so a word above 2^32 exp(-noise) gives less noise. The bound is a thousandth higher: far
    more than rounding can change.
    """
    most = tl.exp2(noise * -1.44269504) * 4.3e9 + 1.0
    return word.to(tl.float32) <= most


@triton.jit
def log(x):
    """Natural logarithm of a positive normal float32."""
    exponent, centred = _split(x)
    return _log_of(centred, exponent)


@triton.jit
def _split(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) - 126).to(tl.float32)
    fraction = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    low = fraction < SQRT_HALF
    return tl.where(low, exponent - 1.0, exponent), tl.where(low, fraction + fraction, fraction) - 1.0


@triton.jit
def _log_of(x, exponent):
    square = x * x
    y = x * 7.0376836292e-2 + -1.1514610310e-1
    y = y * x + 1.1676998740e-1
    y = y * x + -1.2420140846e-1
    y = y * x + 1.4249322787e-1
    y = y * x + -1.6668057665e-1
    y = y * x + 2.0000714765e-1
    y = y * x + -2.4999993993e-1
    y = y * x + 3.3333331174e-1
    y = y * x * square
    y = y + exponent * -2.12194440e-4
    y = y - 0.5 * square
    return (x + y) + exponent * 0.693359375


@triton.jit
def mass(distance):
    """exp(distance) for float32 distance ≤ 0 as an int64 in units of 2^-40, rounded down."""
    x = tl.maximum(distance, -30.0)
    power = tl.floor(x * 1.44269504 + 0.5)
    x = x - power * 0.693359375
    x = x - power * -2.12194440e-4
    y = x * 1.9875691500e-4 + 1.3981999507e-3
    y = y * x + 8.3334519073e-3
    y = y * x + 4.1665795894e-2
    y = y * x + 1.6666665459e-1
    y = y * x + 5.0000001201e-1
    y = (y * (x * x) + x) + 1.0
    unit = ((power.to(tl.int32) + 167) << 23).to(tl.float32, bitcast=True)
    return (y * unit).to(tl.int64)
