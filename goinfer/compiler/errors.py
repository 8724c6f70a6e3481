"""Typed errors of the compiler: the checkpoint cannot be read, is not supported, or does not compile.

One class a cause, one line a message: what, where, what to do.
"""

from goinfer.bundle_format.errors import GoinferError


class CompileError(GoinferError):
    """A well-formed, supported checkpoint does not become a bundle."""


class CheckpointError(GoinferError):
    """A checkpoint is missing, damaged or contradicts itself; the message names file and tensor or key."""


class UnsupportedError(GoinferError):
    """The checkpoint is well formed but uses something goinfer does not know; the message names it."""


class WeightRangeError(CompileError):
    """A weight or scale lies outside what the chosen format can hold."""
