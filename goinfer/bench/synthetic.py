"""GGUF files of any shape with random Q4_0 weights, for measuring how speed goes with size without a download.

The embedding (and the head, which is the same tensor where the shape ties them) is Q8_0. The values mean nothing; their
scales are such that activations stay finite. Peers read the same file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.tokenizer_spec import byte_alphabet


@dataclass(frozen=True)
class Shape:
    """A model's sizes. `family` is llama or qwen2 (which adds biases to q, k and v)."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    context: int = 8192

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SHAPES = {
    "135m": Shape("llama", 30, 576, 9, 3, 1536, 49152, tied=True),
    "0.5b": Shape("qwen2", 24, 896, 14, 2, 4864, 151936, tied=True),
    "1b": Shape("llama", 16, 2048, 32, 8, 8192, 128256, tied=True),
    "3b": Shape("llama", 28, 3072, 24, 8, 8192, 128256, tied=True),
    "7b": Shape("llama", 32, 4096, 32, 32, 11008, 32000, tied=False),
}
"""Sizes of SmolLM2 135M, Qwen2.5 0.5B, Llama 3.2 1B and 3B, and Llama 2 7B."""


_BAND = 65521
"""Blocks in the band of random codes that all weights are made of."""

_SIZES = {"Q4_0": 18, "Q8_0": 34}
"""Bytes of a block of 32 weights."""


def shape_named(name: str) -> Shape:
    """A known shape. Raises UsageError listing them otherwise."""
    if name not in SHAPES:
        raise UsageError(f"shape {name}: unknown: use one of {', '.join(SHAPES)}")
    return SHAPES[name]


def write_gguf(path: Path, shape: Shape) -> Path:
    """Write the file, one tensor in memory at a time; the same shape gives the same bytes."""
    import gguf

    writer = gguf.GGUFWriter(path, shape.family)
    _add_facts(writer, shape)
    _add_tokenizer(writer, shape)
    tensors = list(_tensors(shape))
    for name, dims, kind in tensors:
        quantisation = gguf.GGMLQuantizationType[kind]
        size, nbytes = gguf.GGML_QUANT_SIZES[quantisation]
        count = int(np.prod(dims)) // size * nbytes
        dtype = np.dtype(np.float32) if kind == "F32" else np.dtype(np.uint8)
        stored = dims if kind == "F32" else (*dims[:-1], dims[-1] // size * nbytes)
        writer.add_tensor_info(name, stored, dtype, count, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    codes = _Codes()
    for name, dims, kind in tensors:
        writer.write_tensor_data(codes.values(name, dims, kind))
    writer.close()
    return path


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, dims, type) in the order of a converter."""
    kv = shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocab, shape.hidden), "Q8_0"
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", (shape.hidden,), "F32"
        for name, rows in (("attn_q", shape.hidden), ("attn_k", kv), ("attn_v", kv)):
            yield f"blk.{i}.{name}.weight", (rows, shape.hidden), "Q4_0"
            if shape.family == "qwen2":
                yield f"blk.{i}.{name}.bias", (rows,), "F32"
        yield f"blk.{i}.attn_output.weight", (shape.hidden, shape.hidden), "Q4_0"
        yield f"blk.{i}.ffn_norm.weight", (shape.hidden,), "F32"
        yield f"blk.{i}.ffn_gate.weight", (shape.ffn, shape.hidden), "Q4_0"
        yield f"blk.{i}.ffn_up.weight", (shape.ffn, shape.hidden), "Q4_0"
        yield f"blk.{i}.ffn_down.weight", (shape.hidden, shape.ffn), "Q4_0"
    yield "output_norm.weight", (shape.hidden,), "F32"
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.hidden), "Q8_0"


class _Codes:
    """Blocks of random codes with one scale: about 1 / sqrt(columns) a weight.

    One band of _BAND random blocks is repeated, for every tensor from another place on: drawing billions of codes would
    take minutes, and no kernel's speed depends on their values. _BAND is a prime, so rows do not start alike.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._bands = {kind: self._rng.integers(0, 256, (_BAND, size), np.uint8) for kind, size in _SIZES.items()}
        for band in self._bands.values():
            band[band == 128] = 0  # int8 formats end at -127

    def values(self, name: str, dims: tuple[int, ...], kind: str) -> np.ndarray:
        """The stored bytes of a tensor, [rows, bytes of a row]; norms are ones and biases zeros, in float32."""
        if kind == "F32":
            return np.full(dims, 0.0 if name.endswith("bias") else 1.0, np.float32)
        spread = {"Q4_0": 4.6, "Q8_0": 74.0}[kind]  # of uniform codes
        band = np.roll(self._bands[kind], int(self._rng.integers(_BAND)), axis=0)
        band[:, :2] = np.array([1 / (spread * np.sqrt(dims[1]))], np.float16).view(np.uint8)
        return np.resize(band, (dims[0], dims[1] // 32 * _SIZES[kind]))


def _add_facts(writer: Any, shape: Shape) -> None:
    writer.add_name("synthetic")
    writer.add_file_type(2)  # mostly Q4_0; OpenVINO GenAI refuses a file without it
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)


def _add_tokenizer(writer: Any, shape: Shape) -> None:
    """Two control tokens, the 256 byte letters, the one merge that readers ask for, and names up to the vocabulary."""
    import gguf

    filler = [f"unused{i}" for i in range(shape.vocab - 259)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if shape.family == "qwen2" else "smollm")
    writer.add_token_list(["<|begin|>", "<|end|>", *byte_alphabet(), "ab", *filler])
    kinds = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.UNUSED] * len(filler)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
