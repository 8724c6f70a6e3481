"""GGUF files byte by byte, right or wrong on purpose; shares no code with the reader or the gguf library."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

F32, F16, Q4_0, Q8_0, I8 = 0, 1, 2, 8, 24
U32, I32, F32_VALUE, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True)
class Value:
    """A typed metadata value; `items` gives an array of that type."""

    kind: int
    content: Any

    def raw(self) -> bytes:
        if isinstance(self.content, list):
            body = b"".join(Value(self.kind, item).scalar() for item in self.content)
            return struct.pack("<IIQ", ARRAY, self.kind, len(self.content)) + body
        return struct.pack("<I", self.kind) + self.scalar()

    def scalar(self) -> bytes:
        return text(self.content) if self.kind == STRING else struct.pack("<" + CODES[self.kind], self.content)


@dataclass(frozen=True)
class Tensor:
    """A tensor; dims in GGUF's order (fastest first). `offset` None: after the tensor before."""

    name: str
    dims: tuple[int, ...]
    kind: int = F32
    data: bytes | None = None
    offset: int | None = None


@dataclass(frozen=True)
class Forge:
    """A GGUF file. Counts default to the truth."""

    metadata: tuple[tuple[str, Value], ...] = ()
    tensors: tuple[Tensor, ...] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    n_tensors: int | None = None
    n_keys: int | None = None
    alignment: int = 32
    tail: bytes = b""
    extra: dict[str, Any] = field(default_factory=dict)

    def with_(self, **changes: Any) -> Forge:
        return replace(self, **changes)

    def header(self) -> bytes:
        out = self.magic + struct.pack("<I", self.version)
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        out += struct.pack("<QQ", n_tensors, len(self.metadata) if self.n_keys is None else self.n_keys)
        for key, value in self.metadata:
            out += text(key) + value.raw()
        for tensor, offset in zip(self.tensors, self.offsets(), strict=True):
            out += text(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims) + struct.pack("<IQ", tensor.kind, offset)
        return out

    def offsets(self) -> list[int]:
        out, end = [], 0
        for tensor in self.tensors:
            offset = end if tensor.offset is None else tensor.offset
            out.append(offset)
            end = -(-(offset + len(payload(tensor))) // self.alignment) * self.alignment
        return out

    def bytes(self) -> bytes:
        header = self.header()
        out = bytearray(header + bytes(-len(header) % self.alignment))
        start = len(out)
        for tensor, offset in zip(self.tensors, self.offsets(), strict=True):
            data = payload(tensor)
            if offset > 1 << 30:
                continue
            out.extend(bytes(max(0, start + offset + len(data) - len(out))))
            out[start + offset : start + offset + len(data)] = data
        return bytes(out) + self.tail

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


def payload(tensor: Tensor) -> bytes:
    if tensor.data is not None:
        return tensor.data
    n = 1
    for dim in tensor.dims:
        n *= dim
    if n > 1 << 24:
        return b""
    rng = np.random.default_rng(len(tensor.name) + n)
    w = (rng.standard_normal(n) / 8).astype(np.float32)
    if tensor.kind == F16:
        return w.astype(np.float16).tobytes()
    if tensor.kind == Q8_0:
        codes = rng.integers(-127, 128, (n // 32, 32)).astype(np.int8).view(np.uint8)
        return np.concatenate([_scales(rng, n // 32), codes], axis=1).tobytes()
    if tensor.kind == Q4_0:
        codes = rng.integers(0, 256, (n // 32, 16)).astype(np.uint8)
        return np.concatenate([_scales(rng, n // 32), codes], axis=1).tobytes()
    return w.tobytes()


def _scales(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.standard_normal((n, 1)) / 100).astype(np.float16).view(np.uint8)


LLAMA = (
    ("general.architecture", Value(STRING, "llama")),
    ("llama.context_length", Value(U32, 128)),
    ("llama.embedding_length", Value(U32, 64)),
    ("llama.block_count", Value(U32, 1)),
    ("llama.feed_forward_length", Value(U32, 96)),
    ("llama.attention.head_count", Value(U32, 4)),
    ("llama.attention.head_count_kv", Value(U32, 2)),
    ("llama.attention.layer_norm_rms_epsilon", Value(F32_VALUE, 1e-5)),
    ("llama.rope.freq_base", Value(F32_VALUE, 10000.0)),
)

TENSORS = (
    Tensor("token_embd.weight", (64, 20), Q8_0),
    Tensor("output_norm.weight", (64,), F32),
    Tensor("blk.0.attn_q.weight", (64, 64), Q4_0),
    Tensor("blk.0.attn_k.weight", (64, 32), F16),
)

MODEL = Forge(LLAMA, TENSORS)


def model(*metadata: tuple[str, Value], tensors: tuple[Tensor, ...] = TENSORS, **changes: Any) -> Forge:
    """The small valid model with more metadata (a key given again replaces the first)."""
    merged = dict(LLAMA) | dict(metadata)
    return Forge(tuple(merged.items()), tensors, **changes)
