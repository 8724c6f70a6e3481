"""A small llama as a GGUF whose tensors are quantised each in its own way, as released 4-bit files are."""

import math
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np

from testdata.tiny_gguf import add_facts, add_tokenizer

CONFIG = SimpleNamespace(
    hidden_size=256, num_attention_heads=8, num_key_value_heads=2, head_dim=32, num_hidden_layers=2,
    intermediate_size=512, max_position_embeddings=512, rms_norm_eps=1e-5, vocab_size=260,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)  # fmt: skip
SHAPES = {
    "attn_q": (256, 256), "attn_k": (64, 256), "attn_v": (64, 256), "attn_output": (256, 256),
    "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512),
}  # fmt: skip
MIX = (
    {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q4_1", "ffn_gate": "Q4_K",
     "ffn_up": "Q4_K", "ffn_down": "Q5_0"},
    {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "Q4_1", "attn_output": "Q4_0", "ffn_gate": "Q4_1",
     "ffn_up": "Q4_0", "ffn_down": "Q4_K"},
)  # fmt: skip
"""The types of each layer's matrices."""


def write_mixed_gguf(path: Path, mix: tuple[dict[str, str], ...] = MIX) -> Path:
    """The file; the embedding (and head) is Q8_0, norms are f32."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    add_facts(writer, "llama", CONFIG)
    add_tokenizer(writer, "llama", CONFIG.vocab_size)
    _add(writer, rng, "token_embd", (CONFIG.vocab_size, 256), "Q8_0")
    writer.add_tensor("output_norm.weight", rng.uniform(0.5, 1.5, 256).astype(np.float32))
    for layer, types in enumerate(mix):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", rng.uniform(0.5, 1.5, 256).astype(np.float32))
        for name, kind in types.items():
            _add(writer, rng, f"blk.{layer}.{name}", SHAPES[name], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, shape: tuple[int, int], kind: str) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    if kind in ("Q4_K", "Q6_K"):
        blocks = k_blocks(rng, kind, *shape)
    else:
        # A shift for each group, so that its minimum is not minus its maximum.
        groups = rng.standard_normal((shape[0], shape[1] // 32, 32)) + rng.uniform(-2, 2, (shape[0], shape[1] // 32, 1))
        weights = (groups.reshape(shape) / math.sqrt(shape[1])).astype(np.float32)
        blocks = gguf.quants.quantize(weights, quantisation)
    writer.add_tensor(f"{name}.weight", blocks, raw_dtype=quantisation)


def k_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """Random blocks of a K type (the library cannot quantise to it) with scales that give weights of useful size."""
    size, places = {"Q4_K": (144, (0, 2)), "Q6_K": (210, (208,))}[kind]
    blocks = rng.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    for place in places:
        scales = (rng.uniform(0.5, 1, (rows, columns // 256)) * 2e-4).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)
