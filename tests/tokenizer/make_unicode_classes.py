"""Write goinfer/compiler/unicode_classes.json from the regular expression engine of `tokenizers`.

    python tests/tokenizer/make_unicode_classes.py

The pre-tokenisation patterns of released models run on that engine, so its general categories are the ones that
decide where a text is cut; Python's own `unicodedata` is of another Unicode version in every Python.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import Regex, pre_tokenizers

CATEGORIES = (
    *("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
    *("Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"),
)
TARGET = Path(__file__).parents[2] / "goinfer" / "compiler" / "unicode_classes.json"


def members(pattern: str) -> set[int]:
    """Code points that match the one-character pattern."""
    text = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(ch) for piece, _ in split.pre_tokenize_str(text) for ch in piece}


def rust_numeric() -> set[int]:
    """Code points that the `Digits` pre-tokenizer isolates (it uses another table than the patterns)."""
    text = "".join("a" + chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    return {ord(piece) for piece, _ in pre_tokenizers.Digits(True).pre_tokenize_str(text) if len(piece) == 1} - {97}


def category_runs() -> str:
    """`start category` pairs in ascending order, start in hexadecimal; surrogates are Cs."""
    table = ["Cs"] * 0x110000
    for category in CATEGORIES:
        for c in members(rf"\p{{{category}}}+"):
            table[c] = category
    starts = [c for c in range(0x110000) if c == 0 or table[c] != table[c - 1]]
    return " ".join(f"{c:x}:{table[c]}" for c in starts)


def main() -> None:
    runs = category_runs().split(" ")
    numbers = members(r"\p{N}+")
    data = {
        "source": f"the regular expressions of tokenizers {tokenizers.__version__}",
        "categories": [" ".join(runs[i : i + 12]) for i in range(0, len(runs), 12)],
        "space": " ".join(f"{c:x}" for c in sorted(members(r"\s+"))),
        "digits_only": " ".join(f"{c:x}" for c in sorted(rust_numeric() - numbers)),
    }
    TARGET.write_text(json.dumps(data, indent=0) + "\n")


if __name__ == "__main__":
    main()
