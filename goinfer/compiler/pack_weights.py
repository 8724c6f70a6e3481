"""Streams parameters into the weights section: read a band of rows, pack it, measure the error, write it.

Peak memory is a few bands (_BAND_BYTES of float32 each) whatever the size of the tensor; bands of one parameter are
packed by a small pool of threads and written in order, so the bytes do not depend on timing.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from goinfer.bundle_format.kernel_abi import GROUP, PANEL, round_up
from goinfer.bundle_format.plan import Weight
from goinfer.bundle_format.writer import SectionStream
from goinfer.compiler.checkpoints.ggml_grids import grid_of
from goinfer.compiler.checkpoints.tensor_map import Weights
from goinfer.compiler.plan.builder import VECTOR, StoredParam
from goinfer.compiler.quant import native_blocks
from goinfer.compiler.quant.format import Format, Packed, energy
from goinfer.compiler.quant.formats import format_named

Progress = Callable[[str, str, int, int], None]
"""Called with (phase, name, bytes done, bytes in all)."""

_BAND_BYTES = 8 << 20

Piece = tuple[str, int, int]
"""Part, first row, last row."""


@dataclass(frozen=True)
class Band:
    """Packed rows. `kept` are pieces taken over exactly: their energy is not in `packed`, as only a tensor that has
    an error elsewhere needs it."""

    packed: Packed
    kept: tuple[Piece, ...] = ()


def pack_weights(
    stream: SectionStream, stored: list[StoredParam], placed: list[Weight], weights: Weights, progress: Progress,
    threads: int = 2,
) -> list[Weight]:  # fmt: skip
    """Write every parameter at its planned offset; returns the weights with source types and errors filled in."""
    total = sum(weights.info(part).nbytes for s in stored for part in s.param.parts)
    done, out = 0, []
    with ThreadPoolExecutor(threads) as pool:
        for param, weight in zip(stored, placed, strict=True):
            stream.align(64)
            assert stream.tell() == weight.offset, weight.name
            signal = error = 0.0
            kept: list[Piece] = []
            for band in _in_order(pool, threads, _bands(param, weights)):
                stream.write(band.packed.data)
                signal += band.packed.energy
                error += band.packed.error
                kept += band.kept
            if error:
                signal += sum(energy(weights.read(*piece)) for piece in kept)
            done += sum(weights.info(part).nbytes for part in param.param.parts)
            types = [str(weights.info(part).dtype) for part in param.param.parts]
            relative = float(np.sqrt(error / signal)) if signal else 0.0
            out.append(replace(weight, source_types=types, error=relative))
            progress("weights", weight.name, done, total)
    return out


def _bands(param: StoredParam, weights: Weights) -> Iterator[Callable[[], Band]]:
    """Work items of a parameter, each a whole number of panels except the last."""
    if param.format == VECTOR:
        yield partial(_pack_vector, param, weights)
        return
    n, k = param.nk
    rows = max(PANEL, _BAND_BYTES // (4 * k) // PANEL * PANEL)
    for start in range(0, n, rows):
        yield partial(_pack_band, param, weights, start, min(n, start + rows))


def _pack_vector(param: StoredParam, weights: Weights) -> Band:
    values = np.concatenate([weights.read(part) for part in param.param.parts])
    padded = np.zeros(round_up(len(values), GROUP), np.float32)
    padded[: len(values)] = values
    return Band(Packed(padded.view(np.uint8), 0.0, 0.0))


def _pack_band(param: StoredParam, weights: Weights, start: int, stop: int) -> Band:
    """Rows [start, stop) of the concatenation of the parts, each part on its own where it fills whole panels."""
    fmt = format_named(param.format)
    pieces = list(_pieces(param, start, stop))
    if any((b - a) % PANEL for _, a, b in pieces[:-1]):
        return Band(fmt.measure(np.concatenate([weights.read(*piece) for piece in pieces])))
    bands = [_pack_piece(fmt, weights, piece) for piece in pieces]
    if len(bands) == 1:
        return bands[0]
    data, energies, errors = zip(*((b.packed.data, b.packed.energy, b.packed.error) for b in bands), strict=True)
    return Band(Packed(np.concatenate(data), sum(energies), sum(errors)), tuple(k for b in bands for k in b.kept))


def _pack_piece(fmt: Format, weights: Weights, piece: Piece) -> Band:
    """Rows of one tensor: on the grid that the source has them on if the format can hold it, else quantised."""
    blocks, kind = weights.read_blocks(*piece), str(weights.info(piece[0]).dtype)
    moved = None if blocks is None else native_blocks.repack(fmt.name, kind, blocks)
    if moved is not None:
        return Band(Packed(moved, 0.0, 0.0), (piece,))
    grid = None if blocks is None else grid_of(kind, blocks)
    taken = None if grid is None else fmt.repack(grid)
    if grid is not None and taken is not None and grid.exact:
        return Band(Packed(taken, 0.0, 0.0), (piece,))
    rows = weights.read(*piece)
    if taken is None:
        return Band(fmt.measure(rows))
    return Band(Packed(taken, energy(rows), energy(fmt.unpack(taken, *rows.shape) - rows)))


def _pieces(param: StoredParam, start: int, stop: int) -> Iterator[Piece]:
    """The rows [start, stop) of a concatenation."""
    base = 0
    for part, rows in zip(param.param.parts, param.param.rows, strict=True):
        a, b = max(start - base, 0), min(stop - base, rows)
        if a < b:
            yield part, a, b
        base += rows


def _in_order(
    pool: ThreadPoolExecutor, ahead: int, work: Iterator[Callable[[], Band]]
) -> Iterator[Band]:
    """Results of the work items in order, with at most `ahead` + 1 of them in memory."""
    pending: deque[Future[Band]] = deque()
    for item in work:
        pending.append(pool.submit(item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
