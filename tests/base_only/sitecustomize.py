"""What a process of these tests starts with: no NumPy matrix product works, and named packages cannot be imported.

Put this folder on PYTHONPATH. GOINFER_FORBID lists top-level packages, separated by spaces. The `@` of arrays cannot be
replaced in a running process; test_imports.py looks for it in the sources.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np

PRODUCTS = ("matmul", "dot", "einsum", "tensordot", "inner", "vdot", "matvec", "vecmat")


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a matrix product of NumPy was called")


class Forbid(MetaPathFinder):
    """Raises ImportError for the named packages, as an environment without them would."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {fullname!r} (forbidden by the test)", name=fullname)


for product in PRODUCTS:
    if hasattr(np, product):
        setattr(np, product, refuse)
sys.meta_path.insert(0, Forbid(set(os.environ.get("GOINFER_FORBID", "").split())))
