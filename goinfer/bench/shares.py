"""Shares of the machine's ceilings: what a rate means in bytes read or products made, over what is possible."""

from goinfer.bench.work import Work

READING, DOTS = "reading", "dot products"
STEPS = 32
"""Tokens of a decode measurement, after one that is not timed."""


def shares(work: Work, name: str, rates: list[float], ceilings: list[float]) -> tuple[str, list[float]] | None:
    """(what it is a share of, one share a round) for decodes of one sequence and prefills of 128 and more.

    A decoded token reads its weights and the keys and values so far; a prefilled one makes its products. `ceilings`
    are in GB/s or GMAC/s, measured in the same rounds as the rates.
    """
    kind, _, n = name.rpartition(" ")
    if kind == "decode at":
        one = work.bytes_at(int(n) + 1 + (STEPS - 1) / 2)
    elif kind == "prefill" and int(n) >= 128:
        one = work.row_products
    else:
        return None
    taken = [one * rate / 1e9 / ceiling for rate, ceiling in zip(rates, ceilings, strict=True)]
    return READING if kind == "decode at" else DOTS, taken
