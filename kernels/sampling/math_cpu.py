"""Scalar arithmetic of sampling for numba; each operation rounds as in the Triton kernels.

Every constant is a float32, as a Python float would widen its expression to float64.
"""

import numpy as np

from ..common.jit import inlined
from .philox import KEY_STEPS, MULTIPLIERS

F32 = np.float32
I32 = np.int32

KEY_OF_INFINITY = 0x7F800000
KEY_OF_MINUS_INFINITY = -0x7F800001
MAX_GUMBEL = F32(22.9)
"""upper bound of the noise: -log(2^-33) rounded up"""

_LOW_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_KEY_STEP_0, _KEY_STEP_1 = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])

_ZERO, _HALF_UNIT, _ONE = F32(0), F32(0.5), F32(1)
_WORD_SCALE = F32(2.0**-32)
_SQRT_HALF = F32(0.70710678)
_LN2_HIGH, _LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
_LOG2_E = F32(1.44269504)
_NO_MASS_BELOW = F32(-30)
_MASS_EXPONENT = I32(40 + 127)
"""the exponent bits of the float32 2^40; 127 is the bias of float32's exponents"""

# Minimax polynomials of the Cephes library's logf and expf, highest power first.
_LOG = tuple(
    F32(c)
    for c in (
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
)
_EXP = tuple(
    F32(c)
    for c in (
        *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
        *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    )
)


@inlined
def order_key(x):
    """An int32 key that orders as the float32 x does (-0 as +0). NaN's lies beyond the infinities' keys."""
    bits = F32(x + _ZERO).view(np.int32)
    return I32(bits ^ I32(I32(bits >> 31) & I32(0x7FFFFFFF)))


@inlined
def value_of_key(key):
    bits = I32(key ^ I32(I32(key >> 31) & I32(0x7FFFFFFF)))
    return bits.view(np.float32)


@inlined
def philox_word(seed, position, token):
    """First word of Philox4x32-10 for counter (position, token, 0, 0); all arguments uint64."""
    return philox(position, token, np.uint64(0), np.uint64(0), seed)[0]


@inlined
def philox(c0, c1, c2, c3, seed):
    """The four words for a counter and a 64-bit key, all uint64. Loops would not be unrolled."""
    k0, k1 = seed & _LOW_WORD, seed >> _HALF
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 0)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 2)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 3)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 4)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 5)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 6)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 7)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1, 8)
    return _round(c0, c1, c2, c3, k0, k1, 9)


@inlined
def _round(c0, c1, c2, c3, k0, k1, number):
    a, b = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
    k0 = (k0 + np.uint64(number) * _KEY_STEP_0) & _LOW_WORD
    k1 = (k1 + np.uint64(number) * _KEY_STEP_1) & _LOW_WORD
    return (b >> _HALF) ^ c1 ^ k0, b & _LOW_WORD, (a >> _HALF) ^ c3 ^ k1, a & _LOW_WORD


@inlined
def gumbel(word):
    """-log(-log(1 - u)) for u = (word + 1/2) / 2^32, word uint64."""
    u = (F32(word) + _HALF_UNIT) * _WORD_SCALE
    rest = (F32(_LOW_WORD - word) + _HALF_UNIT) * _WORD_SCALE
    exponent, centred = _split(rest)
    near_one = rest > _SQRT_HALF
    exponential = -_log_of(-u if near_one else centred, _ZERO if near_one else exponent)
    return -log(exponential)


@inlined
def log(x):
    """Natural logarithm of a positive normal float32."""
    exponent, centred = _split(x)
    return _log_of(centred, exponent)


@inlined
def _split(x):
    """(e, f) with x = 2^e * (1 + f) and 1 + f in [sqrt(1/2), sqrt(2)]."""
    bits = F32(x).view(np.int32)
    exponent = F32(I32(I32(bits >> 23) - I32(126)))
    fraction = I32(I32(bits & I32(0x7FFFFF)) | I32(0x3F000000)).view(np.float32)
    low = fraction < _SQRT_HALF
    return exponent - _ONE if low else exponent, (fraction + fraction if low else fraction) - _ONE


@inlined
def _log_of(x, exponent):
    """log(1 + x) + exponent * log(2) for 1 + x in [sqrt(1/2), sqrt(2)]."""
    square = x * x
    y = _LOG[0]
    for i in range(1, 9):
        y = y * x + _LOG[i]
    y = y * x * square
    y = y + exponent * _LN2_LOW
    y = y - _HALF_UNIT * square
    return (x + y) + exponent * _LN2_HIGH


@inlined
def scaled_exp(distance):
    """exp(distance) * 2^40 for float32 distance ≤ 0; below 1 for distances below -28."""
    x = max(distance, _NO_MASS_BELOW)
    power = np.floor(x * _LOG2_E + _HALF_UNIT)
    x = x - power * _LN2_HIGH
    x = x - power * _LN2_LOW
    y = _EXP[0]
    for i in range(1, 6):
        y = y * x + _EXP[i]
    y = (y * (x * x) + x) + _ONE
    unit = I32(I32(I32(power) + _MASS_EXPONENT) << 23).view(np.float32)
    return y * unit
