"""What the tables of a tokenizer section are made from: one form for every kind of source."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from goinfer.compiler.unicode_classes import CodeSet

Kind = Literal["byte_level", "spm"]
# none; first: a space before text at the very start unless one is there; always: the same before every stretch of
# text between added tokens; prepend: one more space before every stretch, whatever it starts with
PrefixSpace = Literal["none", "first", "always", "prepend"]

META_SPACE = "\u2581"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class TokenizerFields(Protocol):
    """The fields of a checkpoint's tokenizer (data only), as its reader hands them over."""

    @property
    def kind(self) -> str:
        """`bpe` (byte level) or `spm` (scores, byte fallback)."""

    @property
    def pre(self) -> str:
        """Name of the pre-tokenizer, as GGUF spells it."""

    @property
    def tokens(self) -> Sequence[str | bytes]:
        """Spelling of every token, by id."""

    @property
    def scores(self) -> Sequence[float] | None:
        """Merge priorities of an spm vocabulary."""

    @property
    def types(self) -> Sequence[int] | None:
        """GGUF token types."""

    @property
    def merges(self) -> Sequence[str] | None:
        """`left right`, best first."""

    @property
    def bos(self) -> int | None:
        """Token that starts a text."""

    @property
    def eos(self) -> int | None:
        """Token that ends a text."""

    @property
    def unk(self) -> int | None:
        """Token of what has no other."""

    @property
    def pad(self) -> int | None:
        """Filler token."""

    @property
    def add_bos(self) -> bool:
        """Encoding starts with bos."""

    @property
    def add_eos(self) -> bool:
        """Encoding ends with eos."""

    @property
    def add_space_prefix(self) -> bool:
        """An spm text gets a space in front."""

    @property
    def json(self) -> bytes | None:
        """tokenizer.json; when it is there it says everything but the special ids."""


@dataclass(frozen=True)
class Added:
    """A token matched whole in the text, before the text is cut up."""

    id: int
    text: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as plain data. Ids without a token have empty bytes. In an spm spec a meta space is a space."""

    kind: Kind
    tokens: Sequence[bytes]  # what each id stands for in decoded text
    byte_ids: Sequence[int | None]  # 256: initial symbols (byte level) or byte fallback (spm)
    merges: np.ndarray  # int64 [M, 3]: left, right, result; best first
    added: Sequence[Added]
    stages: Sequence[str | CodeSet] = ()
    normalizer: Sequence[tuple[str, ...]] = ()
    prefix_space: PrefixSpace = "none"
    split_spaces: bool = False  # spm: every space starts a new word, even inside a run
    strip_left: int = 0  # spaces that decoding drops at the start
    ignore_merges: bool = False
    fuse_unk: bool = False
    unk: int | None = None  # what a character without any token becomes; None drops it
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    prefix_ids: Sequence[int] = ()
    suffix_ids: Sequence[int] = ()
    byte_tokens: frozenset[int] = field(default_factory=frozenset)

    @property
    def special(self) -> frozenset[int]:
        """Ids of control tokens."""
        return frozenset(a.id for a in self.added if a.special)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def spelled_bytes(text: str, alphabet: dict[str, int]) -> bytes:
    """What a byte-level token stands for: its bytes, or its own UTF-8 where it is not spelled in the alphabet.

    Bytes that are no UTF-8 come as lone surrogates (`surrogateescape`)."""
    try:
        return bytes([alphabet[ch] for ch in text])
    except KeyError:
        return text.encode("utf-8", "surrogateescape")
