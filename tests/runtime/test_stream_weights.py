"""Weight streaming on a bundle larger than its budget: resident memory stays under it, output bytes do not change.

Seen red with: no MADV_DONTNEED (resident weights reach the bundle's size); dropping the stretch about to run would
still give the right bytes, only slowly, which is why the bytes and the memory are checked apart.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import goinfer
from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.stream_weights import WeightStreamer
from tests.conftest import native_target

HIDDEN, FFN, LAYERS, VOCAB = 256, 1024, 12, 1024
BUDGET = 12_000_000

CHILD = """
import json, sys
import numpy as np, goinfer
from goinfer.runtime.stream_weights import WeightStreamer

def resident(address):
    inside = False
    total = 0
    for line in open("/proc/self/smaps"):
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            a, b = (int(x, 16) for x in head.split("-"))
            inside = a <= address < b
        elif inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total

with goinfer.load(sys.argv[1], threads=2) as model:
    base = int(model.engine.weights.ctypes.data)
    full = resident(base)
    budget = int(sys.argv[2])
    if budget:
        WeightStreamer(model.engine, budget)
    ids = list(range(3, 40))
    peak = 0
    with model.engine.new_slot() as slot:
        out = [model.engine.forward([(slot, ids)]).copy()]
        for i in range(6):
            hook = model.engine.before_layer
            if hook is not None:
                def measured(layer, hook=hook):
                    global peak
                    hook(layer)
                    peak = max(peak, resident(base))
                model.engine.before_layer = measured
            out.append(model.engine.forward([(slot, [i + 50])]).copy())
            model.engine.before_layer = hook
            peak = max(peak, resident(base))
    import hashlib
    print(json.dumps({"full": full, "peak": peak, "digest": hashlib.sha256(np.concatenate(out).tobytes()).hexdigest()}))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, kernel_cache: None) -> Path:
    """An f32 llama bundle of about 50 MB."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "model.norm.weight": matrix(HIDDEN) + 1}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        tensors |= {p + "input_layernorm.weight": matrix(HIDDEN) + 1,
                    p + "post_attention_layernorm.weight": matrix(HIDDEN) + 1}  # fmt: skip
        for name in ("q", "k", "v", "o"):
            tensors[p + f"self_attn.{name}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        tensors |= {p + "mlp.gate_proj.weight": matrix(FFN, HIDDEN), p + "mlp.up_proj.weight": matrix(FFN, HIDDEN),
                    p + "mlp.down_proj.weight": matrix(HIDDEN, FFN)}  # fmt: skip
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
              "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4,
              "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "tie_word_embeddings": True}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    goinfer.prequant(folder, folder / "m.giw", quant="f32", targets=[native_target()])
    return folder / "m.giw"


def child(bundle: Path, budget: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(bundle), str(budget)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def test_resident_weights_stay_under_the_budget_and_bytes_are_equal(bundle: Path) -> None:
    plain, streamed = child(bundle, 0), child(bundle, BUDGET)
    assert int(str(plain["full"])) > 4 * BUDGET, "the bundle must be larger than the budget"
    assert 0 < int(str(streamed["peak"])) <= BUDGET, streamed
    assert streamed["digest"] == plain["digest"]


def test_a_budget_too_small_is_refused_with_the_need(bundle: Path) -> None:
    with (
        goinfer.load(bundle, threads=1) as model,
        pytest.raises(UsageError, match=r"0\.001 GB is too small; this model needs at least 0\.\d+ GB"),
    ):
        WeightStreamer(model.engine, 1_000_000)
