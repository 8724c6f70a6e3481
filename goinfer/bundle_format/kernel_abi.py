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

ABI_VERSION = 1

FORWARD_SYMBOL = "goinfer_forward"
WORKER_SYMBOL = "goinfer_worker"
CRC_SYMBOL = "goinfer_crc32c"

N_POINTERS = 12
N_INTS = 10
N_FLOATS = 8

DOMAINS = ("rows", "wanted", "att_tiles", "fixed")
"""What a step's tiles are counted over: rows of the forward, rows whose logits are wanted, attention tiles, or 1."""

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
        "offsets": [0, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 192, 256],
        "itemsize": 320,
    }
)  # fmt: skip
"""Shared state of a forward. `done` (tiles finished) and `generation` have cache lines of their own."""

PROFILE = np.dtype([("ticks", "<i8"), ("waiting", "<i8")])
"""Counters of one step, an array of which `profile` points to (0: off): thread 0's ticks, and those it only waited."""

SEMAPHORE_BYTES = 64
"""Distance between two workers' semaphores; a POSIX sem_t is at most 32 bytes on the supported systems."""

ROW_BLOCK = 64
"""Rows that one tile of a matmul covers (the activations of a block stay in L2 while weight panels pass by)."""

PANEL = 16
"""Output rows of a weight panel: the unit of the weight layout and of a matmul's tiles."""

GROUP = 32
"""Values of k that share one scale, in weights and in activations."""

PAGE = 64
"""Positions in a page of the KV cache."""

KV_BLOCK = 256
"""Absolute positions that one softmax partial covers; partials combine in ascending order."""

KV_DTYPES = ("f32", "f16", "int8")


def round_up(n: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


def q8_row_bytes(k: int) -> int:
    """Bytes of one row of int8 activations: codes [K], f32 scales [K/32], i32 code sums [K/32]; K padded to 32."""
    padded = round_up(k, GROUP)
    return round_up(padded + 8 * (padded // GROUP), 64)


def f32_row_bytes(k: int) -> int:
    """Bytes of one row of f32 activations, K padded to a weight group so that a matmul may read whole groups."""
    return round_up(4 * round_up(k, GROUP), 64)


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
