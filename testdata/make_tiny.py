"""Makes testdata/tiny/<family>/<variant>/: a tiny random checkpoint, its GGUF twin, and goldens from transformers.

    python testdata/make_tiny.py [FAMILY ...]        # needs goinfer[compiler,oracle]

The configs are those of each family's `parity.tiny`. Weights are drawn so that broken wiring shows: norm weights away
from 1, biases away from 0, attention neither flat nor one-hot, logits spread out, and a residual stream whose mean
square is only a hundred times eps, so that a wrong eps is seen as well. A seed is drawn again until no position has
two best logits close to each other. Matrices are bf16 and everything else f32, which keeps the files small and exact.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tiny_gguf import write_gguf

from goinfer.compiler.family import Parity
from goinfer.families.registry import FAMILIES, family
from goinfer.gates.compare import compare_logits
from goinfer.gates.goldens import Goldens, save_goldens
from goinfer.gates.oracle import Oracle

ROOT = Path(__file__).resolve().parent / "tiny"
LENGTHS = (5, 40, 264)
"""Prompts: shorter than a window, longer than one, longer than an attention block of 256 positions."""

CONTEXT = 512
"""Replaces a tiny config's shorter context, so that the longest prompt and its continuation fit."""

HIDDEN_ROWS = 48
LEAST_GAP = 1.5e-3
NOISE = 1e-6
RELEASED_SPELLING = {"linear", "scaled"}
"""Variants whose config.json has rope_theta and rope_scaling as released files do, not rope_parameters."""

GGUF_TWINS = {
    "llama": ("plain", "biases", "llama3", "yarn"),
    "qwen2": ("plain",),
    "gemma3_text": ("plain", "scaled"),
}
"""Variants that GGUF can express; what it cannot hold is folded into the weights (see tiny_gguf.py)."""


MISREAD_TWINS = {"llama3", "yarn", "scaled", "biases"}
"""Variants whose GGUF twin transformers 5.24 misreads: it drops rope scaling and llama biases; llama.cpp has both."""


@dataclass(frozen=True)
class Scales:
    """Standard deviations of the parts of a model whose residual stream has RMS `stream`."""

    stream: float
    width: int
    embed_scale: float
    plus_one: bool
    tied: bool
    qk_norm: bool
    logits: float

    @property
    def embed(self) -> float:
        return self.stream / self.embed_scale

    @property
    def head(self) -> float:
        """Mean of the final norm: with a tied head it is what gives the logits their standard deviation."""
        return self.logits / (self.embed * self.width**0.5) if self.tied else 1.0


def scales(config: Any, family_name: str) -> Scales:
    gemma = family_name.startswith("gemma")
    cap = getattr(config, "final_logit_softcapping", None)
    return Scales(
        stream=(100 * config.rms_norm_eps) ** 0.5, width=config.hidden_size,
        embed_scale=config.hidden_size**0.5 if gemma else 1.0, plus_one=gemma,
        tied=bool(config.tie_word_embeddings), qk_norm=gemma,
        logits=cap / 3 if cap else 3.0,
    )  # fmt: skip


def draw(name: str, shape: tuple[int, ...], s: Scales, rng: np.random.Generator) -> np.ndarray:
    """Values of one parameter by the last parts of its transformers name."""
    kind, leaf = name.split(".")[-2:]
    noise = rng.standard_normal(shape)
    if kind == "norm" or kind.endswith("norm"):
        if name == "model.norm.weight":
            mean = s.head
        elif kind in ("q_norm", "k_norm"):
            mean = 1.3
        elif s.plus_one and kind.startswith("post_"):
            mean = 0.7 * s.stream
        else:
            mean = 1.0
        return mean * (1 + 0.3 * noise) - s.plus_one
    if leaf == "bias":
        return noise * (0.3 * s.stream if kind in ("o_proj", "down_proj") else 0.4)
    fan_in = shape[1] ** -0.5
    deviation = {
        "embed_tokens": s.embed,
        "lm_head": s.logits * fan_in,
        "q_proj": (0.015 if s.qk_norm else 1.3) * fan_in,
        "k_proj": (0.015 if s.qk_norm else 1.3) * fan_in,
        "v_proj": fan_in,
        "o_proj": (0.015 if s.qk_norm else s.stream) * fan_in,
        "gate_proj": 1.5 * fan_in,
        "up_proj": 1.5 * fan_in,
        "down_proj": (0.015 if s.qk_norm else 0.7 * s.stream) * fan_in,
    }[kind]
    return noise * deviation


def make_model(parity: Parity, family_name: str, values: Mapping[str, Any], seed: int) -> Any:
    """A transformers model with drawn weights; matrices hold bf16 values."""
    config = getattr(transformers, parity.config_class)(**deepcopy(dict(values)))
    config._attn_implementation = "eager"
    model = getattr(transformers, parity.model_class)(config).eval().float()
    rng, s = np.random.default_rng(seed), scales(config, family_name)
    with torch.no_grad():
        for name, param in sorted(model.named_parameters()):
            drawn = torch.from_numpy(draw(name, tuple(param.shape), s, rng).astype(np.float32))
            param.copy_(drawn.bfloat16().float() if param.ndim == 2 else drawn)
    return model


def prompts(vocab: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, vocab, n).tolist() for n in LENGTHS]


def noise_floor(model: Any, goldens: Goldens, seed: int) -> float:
    """Worst relative L2 error of a position's logits when every weight moves by 1e-6 of itself."""
    rng, before = np.random.default_rng(seed), {}
    with torch.no_grad():
        for name, param in model.named_parameters():
            before[name] = param.clone()
            # A norm that multiplies by 1 + w is moved by a share of that.
            base = 1.0 if "gemma" in model.config.model_type and name.endswith("norm.weight") else 0.0
            moved = 1 + NOISE * rng.standard_normal(tuple(param.shape)).astype(np.float32)
            param.add_(base).mul_(torch.from_numpy(moved)).sub_(base)
        worst = max(compare_logits(Oracle(model).forward(p.ids)[0], p.logits).worst_rel_l2 for p in goldens.prompts)
        for name, param in model.named_parameters():
            param.copy_(before[name])
    return worst


def greedy_gap(model: Any, goldens: Goldens) -> float:
    """The smallest relative gap of the two best logits along the prompts and their continuations."""
    gaps = []
    for p in goldens.prompts:
        logits = Oracle(model).forward([*p.ids, *p.greedy])[0]
        gaps.append(compare_logits(logits, logits).least_gap or 0.0)
    return min(gaps)


def seeds() -> Iterator[int]:
    yield from range(1, 200)


def make_variant(family_name: str, variant: str, parity: Parity) -> None:
    values = {**parity.tiny[variant], "max_position_embeddings": CONTEXT}
    for seed in seeds():
        model = make_model(parity, family_name, values, seed)
        oracle = Oracle(model)
        goldens = oracle.goldens(prompts(model.config.vocab_size, seed), {}, HIDDEN_ROWS)
        gap = greedy_gap(model, goldens)
        if gap > LEAST_GAP:
            break
    floor = noise_floor(model, goldens, seed)
    about = {**goldens.about, "seed": seed, "noise_rel_l2": floor, "noise": NOISE, "least_gap": gap}
    folder = ROOT / family_name / variant
    shutil.rmtree(folder, ignore_errors=True)
    save_checkpoint(folder, model, values, variant)
    save_goldens(folder / "goldens.npz", Goldens(goldens.prompts, about))
    worst = check_reload(folder, goldens)
    if variant in GGUF_TWINS.get(family_name, ()):
        write_gguf(folder / "model.gguf", family_name, model)
        if variant not in MISREAD_TWINS:
            worst = max(worst, check_reload(folder / "model.gguf", goldens))
    spread = float(np.std(goldens.prompts[-1].logits))
    print(f"{family_name}/{variant}: seed {seed}, gap {gap:.1e}, noise floor {floor:.1e}, logits std {spread:.2f},"
          f" reload {worst:.1e}")  # fmt: skip


def save_checkpoint(folder: Path, model: Any, values: Mapping[str, Any], variant: str) -> None:
    """save_pretrained with bf16 matrices; config.json without what depends on the machine."""
    for param in model.parameters():
        if param.ndim == 2:
            param.data = param.data.bfloat16()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    for param in model.parameters():
        param.data = param.data.float()
    if variant in RELEASED_SPELLING:
        config = {**values, "model_type": model.config.model_type, "torch_dtype": "float32",
                  "architectures": [type(model).__name__]}  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_reload(path: Path, goldens: Goldens) -> float:
    """transformers itself must get the goldens back from the file; returns the worst relative L2 error."""
    oracle = Oracle.load(path)
    if path.suffix == ".gguf" and hasattr(oracle.model.config, "query_pre_attn_scalar"):
        for layer in oracle.layers:  # a GGUF file means head_dim; transformers assumes 256 whatever head_dim is
            layer.self_attn.scaling = oracle.model.config.head_dim**-0.5
    worst = 0.0
    for p in goldens.prompts:
        figures = compare_logits(oracle.forward(p.ids)[0], p.logits)
        if not figures.worst_rel_l2 < 1e-4:
            raise SystemExit(f"{path}: transformers reads something else: {figures.statement()}")
        worst = max(worst, figures.worst_rel_l2)
    return worst


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    for name in sys.argv[1:] or FAMILIES:
        parity = family(name).parity
        for variant in parity.tiny:
            make_variant(name, variant, parity)


if __name__ == "__main__":
    main()
