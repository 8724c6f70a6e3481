"""The binary interface between generated code and the runtime: two records, one calling convention.

Every kernel is `void k(const Step*, Ctx*, i32 thread, i64 tile0, i64 tile1)` and works on the tiles
[tile0, tile1) of its step. A step's number of tiles is `units * ceil(counts[domain] / row_tile)`; tile t is unit
`t % units` of row block `t // units`. Codegen reads field offsets from the numpy dtypes below and the runtime
writes the same dtypes, so the two cannot disagree.

Three more functions complete an image: `goinfer_forward(Ctx*)` runs the steps [step_begin, step_end) on all threads
and returns when the last is done; `goinfer_worker(Ctx*, i32 thread)` is the body of a worker thread: it waits on its
semaphore, takes part in a forward, and returns once `quit` is set; `goinfer_crc32c(base, i64 chunk_bytes, i64 n_chunks,
u32* out)` writes the CRC-32C of each of n_chunks consecutive chunks of equal size.
"""

import numpy as np

ABI_VERSION = 2

FORWARD_SYMBOL = "goinfer_forward"
WORKER_SYMBOL = "goinfer_worker"
CRC_SYMBOL = "goinfer_crc32c"

N_POINTERS = 12
N_INTS = 10
N_FLOATS = 8

DOMAINS = ("rows", "wanted", "logits", "greedy", "att_tiles", "att_wanted", "fixed")
"""What a step's tiles are counted over: rows of the forward, rows that somebody wants a result of (their logits, or
their greedy token alone), attention tiles of all rows or of the wanted ones, or 1."""

STEP = np.dtype(
    {
        "names": ["fn", "ptr", "int", "float", "domain", "row_tile", "units", "barrier", "index"],
        "formats": [
            "<u8", ("<u8", N_POINTERS), ("<i8", N_INTS), ("<f4", N_FLOATS), "<i4", "<i4", "<i8", "<i4", "<i4",
        ],
        "offsets": [0, 8, 104, 184, 216, 220, 224, 232, 236],
        "itemsize": 256,
    }
)  # fmt: skip
"""One row of the step table, 256 bytes: function address, operand addresses, sizes, numeric attributes."""

CTX = np.dtype(
    {
        "names": [
            "counts", "steps", "step_begin", "step_end", "counters", "threads", "semaphores", "sem_wait", "sem_post",
            "sched_yield", "quit", "spin_limit", "profile", "done", "generation",
        ],
        "formats": [
            ("<i8", len(DOMAINS)), "<u8", "<i8", "<i8", "<u8", "<i8", "<u8", "<u8", "<u8",
            "<u8", "<i8", "<i8", "<u8", "<i8", "<i8",
        ],
        "offsets": [0, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 192, 256],
        "itemsize": 320,
    }
)  # fmt: skip
"""Shared state of a forward. `done` (tiles finished) and `generation` have cache lines of their own."""

PROFILE = np.dtype([("ticks", "<i8"), ("waiting", "<i8")])
"""Counters of one step, an array of which `profile` points to (0: off): thread 0's ticks, and those it only waited."""

SEMAPHORE_BYTES = 64
"""Distance between two workers' semaphores; a POSIX sem_t is at most 32 bytes on the supported systems."""

PANEL = 16
"""Output rows of a weight panel: the unit of the weight layout and of a matmul's tiles."""

GROUP = 32
"""Values of k that share one scale, in weights and in activations."""

PAGE = 64
"""Positions in a page of the KV cache."""

KV_BLOCK = 256
"""Absolute positions that one softmax partial covers; partials combine in ascending order."""

KV_DTYPES = ("f32", "f16", "int8")

ATTENTION_ROWS = 24
"""Most rows of one attention tile; a tile has at most as many rows of one slot as share its keys and values."""

ATTENTION_TILE_FIELDS = 4
"""i32 of an attention tile: first row, rows, block of the context or -1 for all of it, where its partials lie."""


MATMUL_KINDS = ("matmul", "matmul_gated", "matmul_best")
"""Kernel kinds whose operand 0 is a packed matrix that every row meets."""


def round_up(n: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


Q8_GROUP_BYTES, Q8_SCALE, Q8_OFFSET, Q8_WEIGHTED = 48, 32, 36, 40
"""A group of int8 activations: 32 codes, f32 scale, i32 offset (-8 * sum of the codes: what 4-bit weights with their
zero at 8 need), f32 scale * sum of the codes (what a weight's minimum needs), 4 unused bytes. A group is one piece, so
that a kernel needs one address for each row."""


def q8_row_bytes(k: int) -> int:
    """Bytes of one row of int8 activations, K padded to whole groups."""
    return round_up(round_up(k, GROUP) // GROUP * Q8_GROUP_BYTES, 64)


def f32_row_bytes(k: int) -> int:
    """Bytes of one row of f32 activations, K padded to a weight group so that a matmul may read whole groups."""
    return round_up(4 * round_up(k, GROUP), 64)


def partial_bytes(head_dim: int, lines: int) -> int:
    """Bytes of a block's attention partials of some lines: maxima, sums (each f32, padded to 16), sums of values."""
    return 8 * round_up(lines, 16) + 4 * lines * round_up(head_dim, 16)


def kv_head_bytes(head_dim: int, dtype: str) -> tuple[int, int]:
    """(K bytes, V bytes) of one head in one page.

    K is dim-major in groups of 16 positions, [4][head_dim][16]; V is position-major, [64][head_dim padded to 16].
    int8 appends one f32 scale a position to each. Both parts are multiples of 64 bytes.
    """
    width = {"f32": 4, "f16": 2, "int8": 1}[dtype]
    scales = 4 * PAGE if dtype == "int8" else 0
    return (
        round_up(PAGE * head_dim * width, 64) + scales,
        round_up(PAGE * round_up(head_dim, 16) * width, 64) + scales,
    )
