"""Typed errors of code generation."""

from goinfer.bundle_format.errors import GoinferError


class CompileError(GoinferError):
    """A kernel could not be built or emitted; the message names the kernel and the target."""
