"""L-BFGS for smooth convex functions: limited-memory two-loop recursion with a backtracking line search.

Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.1. Variables should be scaled so that the Hessian is
near the identity: then the first step is close to Newton's.
"""

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_MEMORY = 10
_SUFFICIENT = 1e-4
_MOST_HALVINGS = 12
_NOISE = 1e-7  # relative rounding error of a value whose products are float32


def minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    *,
    converged: Callable[[Vector], bool],
    max_steps: int,
) -> tuple[Vector, int]:
    """The minimiser and the number of steps.

    Args:
        function: value and gradient.
        start: first point, any shape.
        converged: whether a gradient is small enough to stop. It also stops where rounding leaves no descent.
        max_steps: stop after so many.
    """
    point = start
    value, gradient = function(point)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
    for step in range(max_steps):
        if converged(gradient):
            return point, step
        direction = -_inverse_hessian_times(pairs, gradient)
        slope = float(np.vdot(direction, gradient))
        length = 1.0
        for _ in range(_MOST_HALVINGS):
            moved = point + length * direction
            new_value, new_gradient = function(moved)
            if new_value <= value + _SUFFICIENT * length * slope + _NOISE * abs(value):
                break
            length /= 2
        else:
            return point, step
        change, bend = moved - point, new_gradient - gradient
        curvature = float(np.vdot(change, bend))
        if curvature > 0:
            pairs.append((change, bend, curvature))
        point, value, gradient = moved, new_value, new_gradient
    return point, max_steps


def _inverse_hessian_times(pairs: deque[tuple[Vector, Vector, float]], gradient: Vector) -> Vector:
    result = gradient.copy()
    factors = []
    for change, bend, curvature in reversed(pairs):
        factor = float(np.vdot(change, result)) / curvature
        result -= factor * bend
        factors.append(factor)
    if pairs:
        _, bend, curvature = pairs[-1]
        result *= curvature / float(np.vdot(bend, bend))
    for (change, bend, curvature), factor in zip(pairs, reversed(factors), strict=True):
        result += (factor - float(np.vdot(bend, result)) / curvature) * change
    return result
