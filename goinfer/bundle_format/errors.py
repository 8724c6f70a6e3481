"""Typed errors of the product's root and of the .giw file; one class a cause, one line a message."""


class GoinferError(Exception):
    """Root of every error goinfer raises on purpose. `str(error)` is one line: what, where, what to do."""

    exit_code: int = 1


class UsageError(GoinferError):
    """The request itself is wrong (unknown option value, contradictory arguments)."""

    exit_code = 2


class BundleError(GoinferError):
    """A .giw file is damaged, unsupported or unusable here."""
