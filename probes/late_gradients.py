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

from coldframe.probes.core_threads import spread, workers
from coldframe.probes.kept_memory import KeptMemory

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

    def write(self, memory: KeptMemory) -> None:
        """Make the gradient of what waits, head by head of the grid."""
        if not self.factors:
            return
        lefts, rights = zip(*self.factors, strict=True)
        threads = workers(self.sums.device, len(self.sums), self.sums.numel())
        rooms = [[_room(parts, memory) for parts in (lefts, rights)] for _ in range(threads)]

        def write(thread: int, head: int) -> None:
            left, right = (
                torch.cat([part[head] for part in parts], dim=-2, out=room)
                for parts, room in zip((lefts, rights), rooms[thread], strict=True)
            )
            beta = float(self.started)  # 0 does not even read what was there
            if left.dim() == 2:
                self.sums[head].addmm_(left.mT, right, beta=beta)
            else:
                self.sums[head].baddbmm_(left.mT, right, beta=beta)

        spread(write, len(self.sums), threads)
        self.factors.clear()
        self.started = True


def _room(parts: tuple[Tensor, ...], memory: KeptMemory) -> Tensor:
    """Memory for the rows of one head's parts (..., n, columns), one after another."""
    one = parts[0][0]
    return memory.tensor((*one.shape[:-2], sum(part.shape[-2] for part in parts), one.shape[-1]), one)


@dataclass(kw_only=True, eq=False)
class LateGradients:
    """Collects the gradients of matrices over the pieces of a batch.

    Attributes:
        sums: (G, out, in) buffer of every matrix that is late, by name; overwritten by the first `write` of an update.
        memory: where products lie, and factors that wait.
    """

    sums: dict[str, Tensor]
    memory: KeptMemory = field(default_factory=KeptMemory)
    _waiting: dict[tuple[str, str], _Waiting] = field(default_factory=dict)

    def keep(self, matrix: "Matrix", left: Tensor, right: Tensor) -> None:
        """Add left^T right to the gradient of `matrix`, sooner or later."""
        assert matrix.sums is not None, "only a late matrix has a place for its gradient"
        waiting = self._waiting.setdefault((matrix.name, matrix.part), _Waiting(sums=matrix.sums))
        waiting.factors.append((_own(left), _own(right)))
        if waiting.rows >= _WAITING_ROWS:
            waiting.write(self.memory)

    def write(self) -> None:
        """Make `sums` the gradients of everything kept since `forget`."""
        for waiting in self._waiting.values():
            waiting.write(self.memory)

    def forget(self) -> None:
        """Begin anew, after an update."""
        for waiting in self._waiting.values():
            waiting.factors.clear()
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
        assert matrix.late is not None
        return _multiply(values, matrix.value if transposed else matrix.value.mT, matrix.late.memory)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (values,) = ctx.saved_tensors
        matrix: Matrix = ctx.matrix
        assert matrix.late is not None
        matrix.late.keep(matrix, *((values, gradient) if ctx.transposed else (gradient, values)))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        of_values = _multiply(gradient, matrix.value.mT if ctx.transposed else matrix.value, matrix.late.memory)
        return of_values, None, None


def _own(factor: Tensor) -> Tensor:
    """`factor` (..., n, columns) as it is now.

    The gradient of a single row is that of its bias too, and autograd gives it away as the bias's `.grad` where there
    is none yet; the next piece of the batch would be added to it here as well. More rows are summed for the bias.
    """
    return factor.detach().clone() if factor.shape[-2] == 1 else factor.detach()


def _multiply(values: Tensor, matrix: Tensor, memory: KeptMemory) -> Tensor:
    """values @ matrix, head by head of the grid, without the copy that `matmul` makes of parts of a stack."""
    out = memory.tensor((*values.shape[:-1], matrix.shape[-1]), values)

    def multiply(_thread: int, head: int) -> None:
        product = torch.mm if values.dim() == 3 else torch.bmm
        product(values[head], matrix[head], out=out[head])

    if values.dim() == 3 and values.device.type != "cpu":
        return torch.bmm(values, matrix, out=out)
    spread(multiply, len(values), workers(values.device, len(values), matrix.numel()))
    return out
