"""What the files of a run are: names, sizes and types of weights, so that it can be told who read how much."""

from collections import Counter
from pathlib import Path
from typing import Any

from goinfer.bundle_format.errors import GoinferError
from goinfer.bundle_format.reader import Bundle


def gguf_facts(path: Path) -> dict[str, Any]:
    """Name, size and the type that most weights have; no type for a file that goinfer itself cannot read."""
    from goinfer.compiler.checkpoints.gguf import open_gguf

    facts = {"name": path.name, "bytes": path.stat().st_size, "type": ""}
    try:
        source = open_gguf(path)
    except GoinferError:
        return facts
    try:
        sizes: Counter[str] = Counter()
        for tensor in source.tensors.values():
            if tensor.name.startswith("blk."):
                sizes[tensor.dtype] += tensor.nbytes
        return {**facts, "type": sizes.most_common(1)[0][0] if sizes else ""}
    finally:
        source.close()


def bundle_facts(path: Path) -> dict[str, Any]:
    """Name, size, and the size of the weights in it."""
    with Bundle.open(path, "off") as bundle:
        return {"name": path.name, "bytes": path.stat().st_size, "weights": len(bundle.section("weights"))}
