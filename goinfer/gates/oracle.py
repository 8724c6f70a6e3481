"""The reference: Hugging Face transformers in float32 on the same checkpoint. The one place that imports torch.

Attention is the eager one, weights are float32, nothing is compiled or quantised: GGUF files are dequantised by
transformers itself, so their reader is a second opinion on ours.
"""

import inspect
import io
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from goinfer.bundle_format.errors import GoinferError, install_hint
from goinfer.gates.compare import F32
from goinfer.gates.goldens import Goldens, Prompt

NEEDED = ("torch", "transformers")
GREEDY = 32


class OracleMissing(GoinferError):
    """torch or transformers is not installed: a gate that needs them is NOT RUN, which is never a pass."""

    exit_code = 3


def missing() -> str:
    """What the oracle lacks here, as a reason for people; empty when it can run."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(absent)} not installed: {install_hint('oracle')}" if absent else ""


def versions() -> dict[str, str]:
    """Versions of what computes the reference."""
    found = {}
    for name in NEEDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


class Oracle:
    """A loaded reference model. Memory: the model in float32, plus the activations of the longest prompt."""

    def __init__(self, model: Any):
        self.model = model.eval()
        inner = model.model
        self.layers, self.norm = list(inner.layers), inner.norm

    @classmethod
    def load(cls, path: Path) -> "Oracle":
        """Load a GGUF file or a safetensors directory. Raises OracleMissing without torch and transformers."""
        if reason := missing():
            raise OracleMissing(f"oracle: {reason}")
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        where = {"gguf_file": path.name} if path.is_file() else {}
        folder = str(path.parent if path.is_file() else path)
        with redirect_stderr(io.StringIO()):  # a progress bar over tensors that cannot be turned off
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, **where
            )
        return cls(model)

    def forward(self, ids: Sequence[int]) -> tuple[F32, F32]:
        """Logits [n, vocab] and hidden states [n_layers + 2, n, hidden]: embedding, each layer, final norm.

        output_hidden_states of transformers replaces the last layer's output by the final norm's, so the states
        are taken by hooks instead.
        """
        import torch

        taken: list[Any] = []
        with torch.no_grad(), self._taps(taken):
            logits = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        hidden = torch.stack([state[0] for state in taken])
        return logits.float().numpy(), hidden.float().numpy()

    @contextmanager
    def _taps(self, taken: list[Any]) -> Any:
        first = self.layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: taken.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        after = [m.register_forward_hook(lambda _, __, out: taken.append(_tensor(out))) for m in self.layers]
        last = self.norm.register_forward_hook(lambda _, __, out: taken.append(_tensor(out)))
        try:
            yield
        finally:
            for hook in (first, *after, last):
                hook.remove()

    def modules(self, ids: Sequence[int], names: Sequence[str]) -> dict[str, tuple[F32, F32]]:
        """Input and output rows of the named submodules in one forward, for naming the first one that differs."""
        import torch

        taken: dict[str, tuple[F32, F32]] = {}
        known = dict(self.model.named_modules())

        def keep(name: str) -> Any:
            return lambda _, args, out: taken.__setitem__(name, (_rows(args[0]), _rows(_tensor(out))))

        hooks = [known[name].register_forward_hook(keep(name)) for name in names if name in known]
        try:
            with torch.no_grad():
                self.model(input_ids=torch.tensor([list(ids)]), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return taken

    def greedy(self, ids: Sequence[int], count: int = GREEDY) -> list[int]:
        """The `count` most likely next tokens, one after the other, end-of-sequence tokens included."""
        import torch

        out: list[int] = []
        # transformers renamed the argument in 5.x
        known = inspect.signature(self.model.forward).parameters
        name = "cache" if "cache" in known else "past_key_values"
        state, step = None, torch.tensor([list(ids)])
        with torch.no_grad():
            while len(out) < count:
                result = self.model(input_ids=step, use_cache=True, **{name: state})
                state = getattr(result, name)
                out.append(int(result.logits[0, -1].argmax()))
                step = torch.tensor([[out[-1]]])
        return out

    def goldens(
        self, prompts: Sequence[Sequence[int]], about: dict[str, Any], rows: int | None = None, greedy: int = GREEDY
    ) -> Goldens:
        """Goldens of the prompts; `rows` limits the positions whose hidden states are kept."""
        made = []
        for ids in prompts:
            logits, hidden = self.forward(ids)
            kept = kept_rows(len(ids), rows)
            continuation = np.asarray(self.greedy(ids, greedy), np.int64)
            made.append(Prompt(np.asarray(ids, np.int64), logits, kept, hidden[:, kept], continuation))
        return Goldens(tuple(made), {"reference": reference_name(), **about})


def kept_rows(length: int, limit: int | None) -> Any:
    """At most `limit` positions: the first ones, the last ones, and evenly spread ones between."""
    if limit is None or length <= limit:
        return np.arange(length, dtype=np.int64)
    third = limit // 3
    spread = np.linspace(third, length - third - 1, limit - 2 * third).round()
    every = np.concatenate([np.arange(third), spread, np.arange(length - third, length)])
    return np.unique(every.astype(np.int64))


def reference_name() -> str:
    """Reference and versions in one line."""
    return ", ".join(f"{name} {v}" for name, v in sorted(versions().items(), reverse=True)) + ", float32, eager"


def _tensor(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out


def _rows(x: Any) -> F32:
    return x[0].float().numpy().copy()
