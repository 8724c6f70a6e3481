"""Small tokenizers, each twice: as Hugging Face `tokenizers` and as the fields of a checkpoint."""

from dataclasses import dataclass
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from goinfer.compiler.checkpoints import TokenizerSource
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.compiler.tokenizer_pre import PRE_TOKENIZERS
from goinfer.runtime.tokenizer import Tokenizer as Ours
from tests.tokenizer import samples

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "</think>", "\n\n\n"]
SPM_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
SPM_USER_DEFINED = ["\n", "\n\n", "\n\n\n", "\n\n\n\n", "\t", "\t\t", "<b>", "</b>", "<table>"]

CROSSING = ["</", "\u2581</", ">\u2581</"]  # a token with a space inside: a word may not be cut there


@dataclass(frozen=True)
class Pair:
    """Two tokenizers that must agree."""

    theirs: Tokenizer
    ours: Ours
    source: TokenizerSource

    def expected(self, text: str, parse_special: bool = True) -> list[int]:
        self.theirs.encode_special_tokens = not parse_special
        ids: list[int] = self.theirs.encode(text, add_special_tokens=False).ids
        return ids

    def same(self, text: str, parse_special: bool = True) -> None:
        ids = self.expected(text, parse_special)
        got = self.ours.encode(text, add_special=False, parse_special=parse_special)
        assert got == ids, (text, [self.ours.token_bytes(i) for i in got])


# Written out again, so that a slip in the table of pre-tokenizers shows.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3, "qwen2": QWEN2, "deepseek-r1-qwen": QWEN2}
DIGITS = ("smollm", "starcoder", "refact", "codeshell")
NFC = ("qwen2", "qwen35")
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")


def _cutter(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a GGUF name, as the released tokenizer.json of such a model spells it."""
    if name in DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in ("gpt-2", "default", "phi-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(SPLITS.get(name) or PRE_TOKENIZERS[name].pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@cache
def byte_level(name: str, vocab_size: int = 900) -> Pair:
    """A byte-level BPE trained on the samples, cut by the pre-tokenizer `name`."""
    theirs = Tokenizer(models.BPE(ignore_merges=name in WHOLE_WORDS))
    theirs.pre_tokenizer = _cutter(name)
    theirs.decoder = decoders.ByteLevel()
    if name in NFC:
        theirs.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator([samples.LONG], trainer)
    theirs.add_tokens([AddedToken(t, normalized=False, special=False) for t in USER_DEFINED])
    return _paired(theirs, "bpe", name)


def _paired(theirs: Tokenizer, kind: str, pre: str) -> Pair:
    vocab = theirs.get_vocab(with_added_tokens=True)
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    types = [3 if t in CONTROL else 4 if t in USER_DEFINED else 1 for t in tokens]
    source = TokenizerSource(
        kind=kind, pre=pre, tokens=tokens, types=types, merges=merges_of(theirs), bos=0, eos=2, add_bos=False
    )
    return Pair(theirs, Ours(build_tokenizer_section(source)), source)


def merges_of(theirs: Tokenizer) -> list[str]:
    import json

    return [" ".join(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]


def slow_merges(tokens: list[str], priority: list[float]) -> list[tuple[str, str]]:
    """Every cut of every token into two, best priority first; the long way, to compare with."""
    ids = {t: i for i, t in enumerate(tokens)}
    cuts = []
    for token, index in ids.items():
        rows = [(token[:k], token[k:]) for k in range(1, len(token)) if token[:k] in ids and token[k:] in ids]
        cuts += [(priority[index], *row) for row in sorted(rows, key=lambda r: (ids[r[0]], ids[r[1]]))]
    cuts.sort(key=lambda c: (c[0], len(c[1]), len(c[2])), reverse=True)
    return [(left, right) for _, left, right in cuts]


@cache
def spm(space_runs: bool, prefix: bool = False, fallback: bool = True) -> Pair:
    """A scored vocabulary with byte fallback, as GGUF stores Gemma's (`space_runs`) or Llama 2's."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "never")
    trained.train_from_iterator([samples.LONG], trainers.BpeTrainer(vocab_size=1000, show_progress=False))
    pieces = [t for t, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    pieces = [*CROSSING, *(p for p in pieces if p not in CROSSING)]
    pieces = [p for p in pieces if "\n" not in p and "\t" not in p and not (ord(p[0]) > 0x3000 and len(p) == 1)]
    runs = [" " * n for n in range(2, 8)] if space_runs else []
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    tokens = [*SPM_CONTROL, *SPM_USER_DEFINED, *runs, *byte_tokens]
    spelled = [t.replace(" ", "\u2581") if t in runs else t for t in tokens]
    pieces = [p for p in pieces if p not in spelled]
    scores = [-1000.0] * len(tokens) + [float(-i) for i in range(len(pieces))]
    kinds = [3] * len(SPM_CONTROL) + [4] * (len(SPM_USER_DEFINED) + len(runs)) + [6] * len(byte_tokens)
    tokens, spelled = [*tokens, *pieces], [*spelled, *pieces]
    priority = [float(-i) for i in range(len(spelled))] if space_runs else scores
    theirs = Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(spelled)},
            slow_merges(spelled, priority),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        theirs.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "first", split=False)
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        theirs.normalizer = normalizers.Replace(" ", "\u2581")
    theirs.decoder = decoders.Sequence(parts)
    theirs.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPM_CONTROL])
    theirs.add_tokens([AddedToken(t, normalized=False) for t in SPM_USER_DEFINED])
    source = TokenizerSource(
        kind="spm",
        pre="default",
        tokens=tokens,
        scores=scores,
        types=kinds + [1] * len(pieces),
        bos=2,
        eos=1,
        unk=3,
        pad=0,
        add_bos=True,
        add_space_prefix=prefix,
    )
    return Pair(theirs, Ours(build_tokenizer_section(source)), source)
