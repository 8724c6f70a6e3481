"""Typed errors of the compiler: the checkpoint cannot be read, is not supported, or does not compile."""

from goinfer.bundle_format.errors import GoinferError


class CheckpointError(GoinferError):
    """A checkpoint is missing, damaged or contradicts itself; the message names file and tensor or key."""


class UnsupportedError(GoinferError):
    """The checkpoint is well formed but uses something goinfer does not know; the message names it."""


