"""What a model must move and multiply for one token, read off the plan of its bundle."""

from collections.abc import Iterator
from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import MATMUL_KINDS, PAGE, kv_head_bytes
from goinfer.bundle_format.plan import Plan


@dataclass(frozen=True)
class Work:
    """Of one decoded token: bytes of weights that matmuls read, and products that they make.

    `row_products` leaves out what only rows with wanted logits do (the head): that is the work of a prefilled token.
    `kv` has an entry (window or 0, bytes a position) for each group of layers: keys and values that attention reads.
    """

    bytes: int
    products: int
    row_products: int
    kv: tuple[tuple[int, int], ...] = ()

    def kv_bytes(self, position: float) -> float:
        """Bytes of keys and values that a token reads after `position` others: no more than a window holds."""
        return sum(size * (min(position + 1, window) if window else position + 1) for window, size in self.kv)

    def bytes_at(self, position: float) -> float:
        """Bytes of weights, keys and values that a token reads after `position` others."""
        return self.bytes + self.kv_bytes(position)


def work_of(plan: Plan, kv: str) -> Work:
    """The work of a plan's matmul steps, and what attention reads of a cache in precision `kv`.

    Activations are not counted: they stay in the caches.
    """
    matmuls = {k.symbol for k in plan.kernels if k.kind in MATMUL_KINDS}
    weights = {w.name: w for w in plan.weights}
    total = products = row_products = 0
    for step in plan.steps:
        if step.kernel not in matmuls or step.domain == "greedy":  # the head once, whichever way it is taken
            continue
        weight = weights[step.operands[0].removeprefix("weight:")]
        total += weight.nbytes
        products += weight.n * weight.k
        row_products += weight.n * weight.k if step.domain == "rows" else 0
    return Work(total, products, row_products, tuple(_kv_of(plan, kv)))


def _kv_of(plan: Plan, kv: str) -> Iterator[tuple[int, int]]:
    for group in plan.kv_groups:
        heads = zip(group.n_kv_heads, group.head_dims, strict=True)
        yield group.window, sum(n * sum(kv_head_bytes(dim, kv)) // PAGE for n, dim in heads)
