"""Architecture name of a checkpoint -> family; modules load when asked for."""

from collections.abc import Mapping
from importlib import import_module

from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.family import Family

# GGUF general.architecture and config.json model_type names; what a name stands for is its module here.
ARCHITECTURES: Mapping[str, str] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "gemma3": "gemma3_text",
    "gemma3_text": "gemma3_text",
}

FAMILIES = tuple(sorted(set(ARCHITECTURES.values())))


def family(architecture: str) -> Family:
    """The family of an architecture name. Raises UnsupportedError listing the known ones."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedError(f"architecture {architecture!r} is not supported; known: {known}")
    found = import_module(f"goinfer.families.{ARCHITECTURES[architecture]}").FAMILY
    assert isinstance(found, Family)
    return found
