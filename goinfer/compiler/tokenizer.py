"""A checkpoint's tokenizer -> the tokenizer section of the bundle."""

from unicodedata import unidata_version

from goinfer.codegen import cache
from goinfer.compiler.tokenizer_spec import TokenizerFields


def build_tokenizer_section(src: TokenizerFields) -> bytes:
    """The section (bundle_format.tokenizer_layout) for `src`; the same source gives the same bytes.

    Raises UnsupportedError for a pre-tokenizer or component that is not known, naming it, and CheckpointError for
    a vocabulary that contradicts itself. A section that was made before comes from the cache.
    """
    made_by = cache.sources("bundle_format", "compiler")
    key = cache.key_of("tokenizer", made_by, unidata_version, sorted(vars(src).items()))
    return cache.remembered("tokenizers", key, lambda: _build(src))


def _build(src: TokenizerFields) -> bytes:
    from goinfer.compiler.tokenizer_gguf import spec_from_gguf
    from goinfer.compiler.tokenizer_json import spec_from_json
    from goinfer.compiler.tokenizer_tables import pack_spec

    return pack_spec(spec_from_gguf(src) if src.json is None else spec_from_json(src))
