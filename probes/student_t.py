"""Student's t: the quantile that a robust interval needs, without a dependency on SciPy.

The distribution function is the regularised incomplete beta function, by its continued fraction (Numerical
Recipes' form of DLMF 8.17.22, evaluated by the modified Lentz method); the quantile is found by bisection.
"""

import math

_TINY = 1e-300
_TERMS = 500


def t_quantile(probability: float, degrees: int) -> float:
    """Value that a t variable with `degrees` >= 1 degrees of freedom stays below with `probability` in (0.5, 1)."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_cdf(value: float, degrees: int) -> float:
    """Probability that a t variable with `degrees` degrees of freedom is below `value` >= 0."""
    tail = _incomplete_beta(degrees / (degrees + value * value), degrees / 2, 0.5)
    return 1 - tail / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised I_x(a, b) for x in [0, 1]."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    total = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            total *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return total


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
