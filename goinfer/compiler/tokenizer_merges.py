"""Merge rules by token id, from a list of merges or from the vocabulary alone."""

from collections.abc import Mapping, Sequence

import numpy as np

from goinfer.compiler.errors import CheckpointError

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64


def merge_ids(merges: Sequence[str] | Sequence[Sequence[str]], ids: Mapping[str, int]) -> np.ndarray:
    """int64 [M, 3], best first. Each merge must name two tokens whose concatenation is a token."""
    out = np.empty((len(merges), 3), dtype=np.int64)
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) != 2:
            raise CheckpointError(f"tokenizer: merge {merge!r} is not a pair")
        try:
            out[rank] = ids[pair[0]], ids[pair[1]], ids[pair[0] + pair[1]]
        except KeyError as e:
            raise CheckpointError(f"tokenizer: merge {merge!r} needs {e.args[0]!r}, not in the vocabulary") from None
    return out


def merges_from_scores(ids: Mapping[str, int], scores: np.ndarray) -> np.ndarray:
    """Every way to cut a token into two tokens, ordered by score (by id), then by the longer left part.

    Equal scores keep the order of the vocabulary and, within a token, of the parts' ids. int64 [M, 3].
    """
    texts = list(ids)
    token_ids = np.fromiter(ids.values(), dtype=np.int64, count=len(ids))
    owner, at, left, right = _cuts(texts)
    found = zip(owner.tolist(), left.tolist(), right.tolist(), strict=True)
    good = [texts[t] == texts[a] + texts[b] for t, a, b in found]
    owner, at, left, right = (x[good] for x in (owner, at, left, right))
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    merges = np.stack([token_ids[left], token_ids[right], token_ids[owner]], axis=1)
    by = (merges[:, 1], merges[:, 0], owner, at - sizes[owner], -at, -scores[merges[:, 2]])
    return merges[np.lexsort(by)]


def _cuts(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Candidates (text, cut position, left text, right text), found by 64-bit hashes: nearly all are real."""
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    powers = np.cumprod(np.full(len(points) + 1, _BASE, dtype=np.uint64))
    inverses = np.cumprod(np.full(len(points) + 1, pow(int(_BASE), -1, 1 << 64), dtype=np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((points + np.uint64(1)) * powers[: len(points)])])
    ends = np.cumsum(sizes)
    starts = ends - sizes

    def hashed(first: np.ndarray, last: np.ndarray) -> np.ndarray:
        return (sums[last] - sums[first]) * inverses[first]

    whole = hashed(starts, ends)
    order = np.argsort(whole, kind="stable")

    def find(hashes: np.ndarray) -> np.ndarray:
        place = np.searchsorted(whole[order], hashes)
        candidate = order[np.minimum(place, len(order) - 1)]
        return np.where(whole[candidate] == hashes, candidate, -1)

    inside = np.maximum(sizes - 1, 0)  # places to cut
    owner = np.repeat(np.arange(len(texts)), inside)
    middle = np.arange(len(owner)) - np.repeat(np.cumsum(inside) - inside, inside) + starts[owner] + 1
    left = find(hashed(starts[owner], middle))
    kept = left >= 0
    owner, middle, left = owner[kept], middle[kept], left[kept]
    right = find(hashed(middle, ends[owner]))
    kept = right >= 0
    owner, middle, left, right = owner[kept], middle[kept], left[kept], right[kept]
    return owner, middle - starts[owner], left, right
