"""Writes the GGUF twin of a tiny checkpoint, in llama.cpp's names, row orders and conventions.

What differs from safetensors: the q and k rows of llama are stored as interleaved pairs, gemma's norms hold 1 + w,
llama3 scaling is a tensor of frequency divisors, and gemma's query_pre_attn_scalar does not exist (it is head_dim),
so it goes into the q norm.
"""

import math
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

ARCHITECTURE = {"llama": "llama", "qwen2": "qwen2", "gemma3_text": "gemma3"}

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path: Path, family: str, model: Any) -> None:
    """The model as one GGUF file: bf16 matrices, f32 vectors."""
    config = model.config
    writer = gguf.GGUFWriter(path, ARCHITECTURE[family])
    add_facts(writer, family, config)
    add_tokenizer(writer, family, config.vocab_size)
    if divisors := llama3_divisors(config):
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    for name, param in model.named_parameters():
        value = param.detach().float().numpy()
        if family == "gemma3_text" and name.endswith("norm.weight"):
            value = value + np.float32(1)
            if name.endswith("q_norm.weight"):
                value = value * np.float32(math.sqrt(config.head_dim / config.query_pre_attn_scalar))
        if family == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            value = paired(value, config.head_dim)
        add_tensor(writer, gguf_name(family, name), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: Any, name: str, value: np.ndarray) -> None:
    if value.ndim == 2:
        bits = value.astype(ml_dtypes.bfloat16).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, value.astype(np.float32))


def paired(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Graph row j*dim/2 + i of a head becomes stored row 2i + j."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(np.swapaxes(heads, 1, 2)).reshape(rows.shape)


def gguf_name(family: str, name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{leaf}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(GEMMA_NAMES if family == 'gemma3_text' else NAMES)[part]}.{leaf}"


def add_facts(writer: Any, family: str, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(f"tiny {family}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if family != "gemma3_text":
        writer.add_rope_dimension_count(head_dim)
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(rope["factor"]))
        writer.add_rope_scaling_orig_ctx_len(int(rope["original_max_position_embeddings"]))
    if family == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)


def llama3_divisors(config: Any) -> list[float]:
    """Per-frequency divisors of llama3 scaling, as a converter writes them: factor for long waves, 1 for short."""
    rope = config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return []
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config.head_dim)
        smooth = min(1.0, max(0.0, (old / wavelength - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return divisors


def add_tokenizer(writer: Any, family: str, vocab: int) -> None:
    """Byte tokens and four special ones: enough for a file that every reader accepts."""
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 3]
    if family == "gemma3_text":
        writer.add_tokenizer_model("llama")
        tokens = special + [f"<0x{b:02X}>" for b in range(256)]
        kinds += [gguf.TokenType.BYTE] * 256
        writer.add_token_scores([0.0] * vocab)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2" if family == "qwen2" else "smollm")
        tokens = special + [byte_letter(b) for b in range(256)]
        kinds += [gguf.TokenType.NORMAL] * 256
        writer.add_token_merges(["t h", "h e"])
        tokens[-2:] = ["th", "he"]
    writer.add_token_list(tokens[:vocab])
    writer.add_token_types(kinds[:vocab])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(3)


def byte_letter(byte: int) -> str:
    """The printable letter that stands for a byte in a byte-level vocabulary."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in visible:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in visible].index(byte))
