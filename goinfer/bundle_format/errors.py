"""Typed errors of the product's root and of the .giw file; one class a cause, one line a message."""

import os


class GoinferError(Exception):
    """Root of every error goinfer raises on purpose. `str(error)` is one line: what, where, what to do."""

    exit_code: int = 1


class UsageError(GoinferError):
    """The request itself is wrong (unknown option value, contradictory arguments)."""

    exit_code = 2


class BundleError(GoinferError):
    """A .giw file is damaged, unsupported or unusable here."""


class BundleOpenError(BundleError):
    """The file is missing, is not a regular file or may not be read."""


class BundleReadError(BundleError):
    """The operating system failed to read bytes that the file has."""


class BundleClosedError(BundleError):
    """The bundle was used after close()."""


class NotABundleError(BundleError):
    """The magic is not that of a .giw file."""


class TruncatedError(BundleError):
    """The file is shorter than its header needs or says."""


class TrailingBytesError(BundleError):
    """The file holds bytes that nothing describes, after the index or inside it."""


class HeaderError(BundleError):
    """The header contradicts its own checksum or the rules for its fields."""


class NewerVersionError(BundleError):
    """The file was written by a version of the format that this reader does not know."""


class UnsupportedFlagsError(BundleError):
    """A header flag is set that this reader does not know."""


class IndexChecksumError(BundleError):
    """The index does not have the checksum that the header states."""


class IndexFormatError(BundleError):
    """The index is not the msgpack value that the format describes."""


class UnknownKeyError(IndexFormatError):
    """A map in the index has a key that the format does not define."""


class MissingKeyError(IndexFormatError):
    """A map in the index lacks a key that the format requires."""


class DuplicateKeyError(IndexFormatError):
    """A map in the index or manifest has a key twice."""


class UnknownKindError(IndexFormatError):
    """A section has a kind number that the format does not define."""


class UnknownCodecError(IndexFormatError):
    """A section has a codec number that the format does not define, or one its kind may not have."""


class SectionNameError(IndexFormatError):
    """A section's name has a forbidden character or is too long."""


class DuplicateSectionError(IndexFormatError):
    """Two sections have the same kind and name."""


class ChecksumTableError(IndexFormatError):
    """A section's checksum table does not have one entry a chunk."""


class SectionSizeError(IndexFormatError):
    """A section's stored size and raw size contradict each other."""


class SectionRangeError(BundleError):
    """A section or the index reaches past the end of its room in the file."""


class OverlapError(BundleError):
    """Two sections, or a section and the header or index, share bytes."""


class AlignmentError(BundleError):
    """A section is not aligned as its kind or its own index entry asks."""


class GapError(BundleError):
    """There is more room between two sections than alignment explains."""


class PaddingError(BundleError):
    """A padding byte between two sections is not zero."""


class LimitError(BundleError):
    """A size or count is over the cap of the format."""


class ChecksumError(BundleError):
    """A chunk of a section does not have the checksum that the index states."""

    def __init__(self, message: str, section: str, chunk: int, offset: int, size: int) -> None:
        super().__init__(message)
        self.section = section
        self.chunk = chunk
        self.offset = offset
        self.size = size


class CompressionError(BundleError):
    """A compressed section does not decompress to the size that the index states."""


class MissingSectionError(BundleError):
    """The bundle has no section of the kind and name asked for."""


class ManifestError(BundleError):
    """The manifest is not a JSON object as the format describes it."""


class OutputError(BundleError):
    """A bundle cannot be written where it was asked for."""


class DiskFullError(OutputError):
    """There is no room for the bundle: disk, quota or file size limit."""


class WriterStateError(BundleError):
    """The writer was used out of order, or with values that no bundle may hold."""


def install_hint(extra: str) -> str:
    """How to get the packages of an extra, installed from an index or in a checkout."""
    return f"pip install 'goinfer[{extra}]' (in a checkout: pip install -e '.[{extra}]')"


def shown(path: str | os.PathLike[str]) -> str:
    """The path as one printable line: whatever a file name contains, a message stays one line."""
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)
