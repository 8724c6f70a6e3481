"""What a model must move and multiply for one token, read off the plan of its bundle."""

from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import MATMUL_KINDS
from goinfer.bundle_format.plan import Plan


@dataclass(frozen=True)
class Work:
    """Of one decoded token: bytes of weights that matmuls read, and products that they make.

    `row_products` leaves out what only rows with wanted logits do (the head): that is the work of a prefilled token.
    """

    bytes: int
    products: int
    row_products: int


def work_of(plan: Plan) -> Work:
    """The work of a plan's matmul steps; activations and keys and values are not counted."""
    matmuls = {k.symbol for k in plan.kernels if k.kind in MATMUL_KINDS}
    weights = {w.name: w for w in plan.weights}
    total = products = row_products = 0
    for step in plan.steps:
        if step.kernel not in matmuls:
            continue
        weight = weights[step.operands[0].removeprefix("weight:")]
        total += weight.nbytes
        products += weight.n * weight.k
        row_products += weight.n * weight.k if step.domain == "rows" else 0
    return Work(total, products, row_products)
