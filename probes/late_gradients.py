"""Late gradients: gradients of stacked matrices, made once an update instead of once a piece of its batch.

The gradient of a matrix is one product over all rows of a batch. Made piece by piece it is written and added up each
time, and 20 heads of width 1,024 have 1 GB of it. Here the factors wait, 2 MB a row, until the update or until
`_WAITING_ROWS` of them are there.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_WAITING_ROWS = 256  # the presets' batch; bounds the memory of larger ones


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """Factors of one matrix' gradient, which is the sum of left^T right.

    Attributes:
        sums: (..., out, in) where the gradient goes.
        factors: pairs (..., n, out), (..., n, in).
        started: whether `sums` holds something of this update.
    """

    sums: Tensor
    factors: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    started: bool = False

    @property
    def rows(self) -> int:
        return sum(left.shape[-2] for left, _ in self.factors)

    def write(self) -> None:
        if not self.factors:
            return
        left, right = (torch.cat(parts, dim=-2) for parts in zip(*self.factors, strict=True))
        self.factors.clear()
        for sums, one, other in _three_dimensional(self.sums, left, right):
            sums.baddbmm_(one.mT, other, beta=float(self.started))  # beta 0 does not even read what was there
        self.started = True


@dataclass(kw_only=True, eq=False)
class LateGradients:
    """Collects the gradients of matrices over the pieces of a batch.

    Attributes:
        sums: (G, out, in) buffer of every matrix that is late, by name; overwritten by each update's `write`.
    """

    sums: dict[str, Tensor]
    _waiting: dict[tuple[str, str], _Waiting] = field(default_factory=dict)

    def keep(self, matrix: "Matrix", left: Tensor, right: Tensor) -> None:
        """Add left^T right to the gradient of `matrix`, sooner or later."""
        assert matrix.sums is not None, "only a late matrix has a place for its gradient"
        waiting = self._waiting.setdefault((matrix.name, matrix.part), _Waiting(sums=matrix.sums))
        waiting.factors.append((_own(left), _own(right)))
        if waiting.rows >= _WAITING_ROWS:
            waiting.write()

    def write(self) -> None:
        """Make `sums` the gradients of everything kept since the last call."""
        for waiting in self._waiting.values():
            waiting.write()
            waiting.started = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """Stacked matrices (..., out, in), and where their gradient goes.

    Attributes:
        name, part: which parameter, and which part of it.
        value: the numbers.
        late: collects the gradient; None leaves it to autograd.
        sums: the place of `value` in the gradient buffer of `late`.
    """

    name: str
    value: Tensor
    late: LateGradients | None = None
    sums: Tensor | None = None
    part: str = ""

    @classmethod
    def of(cls, name: str, value: Tensor, late: LateGradients | None) -> "Matrix":
        """The whole parameter `name`, late if `late` has a buffer for it."""
        if late is None or name not in late.sums:
            return cls(name=name, value=value)
        return cls(name=name, value=value.detach(), late=late, sums=late.sums[name])

    def split(self, part: str, rows: slice, heads: int) -> "Matrix":
        """(G, heads, rows / heads, in): `rows` of each matrix, divided evenly among attention heads."""

        def view(whole: Tensor) -> Tensor:
            return torch.unflatten(whole[:, rows], 1, (heads, -1))

        sums = None if self.sums is None else view(self.sums)
        return Matrix(name=self.name, value=view(self.value), late=self.late, sums=sums, part=part)

    def apply(self, values: Tensor) -> Tensor:
        """W x: (..., n, in) -> (..., n, out)."""
        return self._product(values, False)

    def apply_transposed(self, values: Tensor) -> Tensor:
        """W^T x: (..., n, out) -> (..., n, in)."""
        return self._product(values, True)

    def _product(self, values: Tensor, transposed: bool) -> Tensor:
        if self.late is None:
            return values @ (self.value if transposed else self.value.mT)
        result: Tensor = _LateProduct.apply(values, self, transposed)  # type: ignore[no-untyped-call]
        return result


class _LateProduct(torch.autograd.Function):
    """A product with a matrix whose own gradient is kept for later."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, matrix: Matrix, transposed: bool) -> Tensor:
        ctx.save_for_backward(values)
        ctx.matrix, ctx.transposed = matrix, transposed
        return _multiply(values, matrix.value if transposed else matrix.value.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (values,) = ctx.saved_tensors
        matrix: Matrix = ctx.matrix
        assert matrix.late is not None
        matrix.late.keep(matrix, *((values, gradient) if ctx.transposed else (gradient, values)))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return _multiply(gradient, matrix.value.mT if ctx.transposed else matrix.value), None, None


def _own(factor: Tensor) -> Tensor:
    """`factor` (..., n, columns) as it is now.

    The gradient of a single row is that of its bias too, and autograd gives it away as the bias's `.grad` where there
    is none yet; the next piece of the batch would be added to it here as well. More rows are summed for the bias.
    """
    return factor.detach().clone() if factor.shape[-2] == 1 else factor.detach()


def _multiply(values: Tensor, matrix: Tensor) -> Tensor:
    """values @ matrix, without the copy that `matmul` makes of parts of a stack."""
    out = values.new_empty(*values.shape[:-1], matrix.shape[-1])
    for one, part, into in _three_dimensional(values, matrix, out):
        torch.bmm(one, part, out=into)
    return out


def _three_dimensional(*tensors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """The tensors as stacks of matrices: themselves, or one a head of the grid where attention heads have an axis."""
    if tensors[0].dim() == 3:
        return zip(*([tensor] for tensor in tensors), strict=True)
    return zip(*tensors, strict=True)
