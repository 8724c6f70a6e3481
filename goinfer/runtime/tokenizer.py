"""The tokenizer of a bundle: reads the section's tables in place, ids equal to Hugging Face's."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

from goinfer.bundle_format import tokenizer_layout as layout
from goinfer.bundle_format.errors import GoinferError
from goinfer.runtime import checks
from goinfer.runtime.errors import ArgumentError
from goinfer.runtime.tokenizer_added import AddedTokens, cut
from goinfer.runtime.tokenizer_bpe import Merger
from goinfer.runtime.tokenizer_stream import StreamDecoder
from goinfer.runtime.tokenizer_words import ClassSplitter, SpaceSplitter

_META_SPACE = "\u2581"
_CACHE_LIMIT = 1 << 15
_CACHED_LENGTH = 48  # longer words hardly come twice


class TokenIdError(GoinferError):
    """An id that the vocabulary does not have."""


class Tokenizer:
    """Text to ids and back. Opening reads only the section's head; the caches are bounded. Threads may share it.

    `bos`, `eos`, `pad` and `unk` are ids or None.
    """

    def __init__(self, section: memoryview | bytes) -> None:
        meta, arrays = layout.unpack(memoryview(section))
        self._meta = meta
        self._arrays = arrays
        self._offsets = arrays["token_offsets"]
        self._bytes = arrays["token_bytes"]
        self._byte_ids = arrays["byte_ids"]
        self._hash = arrays["token_hash"]
        self._merger = Merger(arrays)
        self._byte_level = meta["kind"] == "byte_level"
        self._words: dict[str, list[int]] = {}
        self._chars: dict[str, list[int]] = {}
        self.vocab_size = len(arrays["token_flags"])
        self.bos: int | None = meta["bos"]
        self.eos: int | None = meta["eos"]
        self.pad: int | None = meta["pad"]
        self.unk: int | None = meta["unk"]

    # ids of tokens

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Control tokens."""
        added = zip(self._arrays["added_ids"], self._arrays["added_flags"], strict=True)
        return frozenset(token for token, flags in added if flags & layout.FLAG_SPECIAL)

    @cached_property
    def _added(self) -> tuple[AddedTokens, AddedTokens]:
        return AddedTokens(self._arrays, False), AddedTokens(self._arrays, True)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Tokens matched whole in a text, control tokens among them: spelling -> id."""
        return {**self._added[1].ids, **self._added[0].ids}

    def token_id(self, text: str) -> int | None:
        """The id of the token spelled `text`, added tokens first; None for a spelling no token has."""
        if not isinstance(text, str):
            raise ArgumentError("text", f"want a string, not {checks.told(text)}")
        for added in self._added:
            if text in added.ids:
                return added.ids[text]
        return self._lookup(text.encode("utf-8", "surrogatepass"))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for in decoded text; a control token stands for its own spelling."""
        if type(token) is not int:
            token = checks.token_ids("tokens", [token])[0]
        if not 0 <= token < self.vocab_size:
            shown = checks.told(token)
            raise TokenIdError(f"tokenizer: there is no token {shown}; the vocabulary has {self.vocab_size}")
        return bytes(self._bytes[self._offsets[token] : self._offsets[token + 1]])

    def _lookup(self, key: bytes) -> int | None:
        """The token of ordinary text with these bytes."""
        table = self._hash
        slots = len(table)
        at = layout.hash_slot(key, slots)
        for _ in range(slots):
            token = table[at]
            if token == layout.NONE:
                return None
            if self._bytes[self._offsets[token] : self._offsets[token + 1]] == key:
                return token
            at = (at + 1) & (slots - 1)
        return None

    # decoding

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        skip: Set[int] = self.special_ids if skip_special else frozenset()
        known = checks.token_ids("ids", ids)
        text = b"".join([self.token_bytes(i) for i in known if i not in skip]).decode("utf-8", "replace")
        for _ in range(self._meta["strip_left"]):
            text = text.removeprefix(" ")
        return text

    def stream(self, skip_special: bool = False) -> StreamDecoder:
        """A fresh incremental decoder."""
        skip: Set[int] = self.special_ids if skip_special else frozenset()
        return StreamDecoder(self.token_bytes, skip, self._meta["strip_left"])

    # encoding

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of `text`.

        add_special: with what the model puts around a text (bos, eos). parse_special: control tokens spelled in
        the text become those tokens; otherwise they are plain text, while other added tokens (runs of newlines,
        say) are still whole. Raises ArgumentError for anything but a string, and for half a surrogate pair.
        """
        ids = self._encode(text, parse_special, "")
        return [*self._meta["prefix_ids"], *ids, *self._meta["suffix_ids"]] if add_special else ids

    def encode_guarded(self, text: str, guard: str) -> list[int]:
        """Ids of `text` without its `guard` characters, with nothing added around.

        No added token is seen across a guard or starts right after one, so a guard before a control token that
        somebody spelled out makes it plain text; the rest is encoded as if the guards were not there.
        """
        return self._encode(text, True, guard)

    def _encode(self, text: str, parse_special: bool, guard: str) -> list[int]:
        ids: list[int] = []
        for stretch, first in self._stretches(checks.text("text", text), parse_special, guard):
            if isinstance(stretch, int):
                ids.append(stretch)
                continue
            for word in self._split(self._prefixed(stretch, first)):
                known = self._words.get(word)
                ids += known if known is not None else self._encode_word(word)
        return ids

    def _stretches(self, text: str, parse_special: bool, guard: str) -> Iterator[tuple[str | int, bool]]:
        """Normalised stretches of text and the added tokens between them; True for text at the very start."""
        raw, normalized = self._added
        for part, start in cut(text, raw.find(text, parse_special, guard)):
            if isinstance(part, int):
                yield part, False
                continue
            clean = self._normalize(part.replace(guard, "") if guard else part)
            for inner, offset in cut(clean, normalized.find(clean, parse_special, "")):
                yield inner, start == offset == 0

    def _normalize(self, text: str) -> str:
        if not self._byte_level:
            text = text.replace(_META_SPACE, " ")
            if self._meta["prefix_space"] == "prepend" and text:
                text = " " + text
        for step in self._meta["normalizer"]:
            if step[0] == "replace":
                text = text.replace(step[1], step[2])
            elif step[0] == "prepend":
                text = step[1] + text if text else text
            else:
                text = unicodedata.normalize(step[0], text)
        return text

    def _prefixed(self, text: str, first: bool) -> str:
        mode = self._meta["prefix_space"]
        if text.startswith(" ") or not (mode == "always" or (mode == "first" and first)):
            return text
        return " " + text

    @cached_property
    def _split(self) -> Any:
        if self._byte_level:
            return ClassSplitter(self._meta["patterns"], self._arrays).words
        return SpaceSplitter(self._meta["words"]).words

    def _encode_word(self, word: str) -> list[int]:
        whole = self._lookup(word.encode("utf-8")) if self._meta["ignore_merges"] else None
        if whole is not None:
            ids = [whole]
        else:
            ids = self._merger.merge(self._byte_symbols(word) if self._byte_level else self._char_symbols(word))
        if len(word) <= _CACHED_LENGTH:
            if len(self._words) >= _CACHE_LIMIT:
                self._words.clear()
            self._words[word] = ids
        return ids

    def _byte_symbols(self, word: str) -> list[int]:
        table = self._byte_ids
        symbols = [table[b] for b in word.encode("utf-8")]
        return self._with_unknown(symbols) if layout.NONE in symbols else symbols

    def _char_symbols(self, word: str) -> list[int]:
        symbols: list[int] = []
        for ch in word:
            known = self._chars.get(ch)
            symbols += known if known is not None else self._char(ch)
        return self._with_unknown(symbols) if layout.NONE in symbols else symbols

    def _char(self, ch: str) -> list[int]:
        """The token of one character, else those of its bytes, else NONE."""
        key = ch.encode("utf-8")
        token = self._lookup(key)
        ids = [token] if token is not None else [self._byte_ids[b] for b in key]
        ids = [layout.NONE] if layout.NONE in ids else ids
        if len(self._chars) >= _CACHE_LIMIT:
            self._chars.clear()
        self._chars[ch] = ids
        return ids

    def _with_unknown(self, symbols: Sequence[int]) -> list[int]:
        """Symbols without a token become unk (a run of them one unk, if the model fuses) or vanish."""
        out: list[int] = []
        fuse = self._meta["fuse_unk"]
        open_run = False
        for symbol in symbols:
            unknown = symbol == layout.NONE
            if not unknown:
                out.append(symbol)
            elif self.unk is not None and not (fuse and open_run):
                out.append(self.unk)
            open_run = unknown
        return out
