# ruff: noqa: E501, RUF001 - texts, some of them long and all of them odd
"""Texts that tokenizers get wrong: scripts, joiners, whitespace, controls, markup beside words."""

import itertools

from hypothesis import strategies as st

PROSE = [
    "The quick brown fox jumps over the lazy dog. It wasn't amused; they'd've said so, we'll see.",
    "I'M SHOUTING, IT'S LOUD, YOU'LL HEAR. 'tis ‘curly’ it’s 's 'S '\u017f '\u017fa x'\u017ft",
    "Größe, Straße, Ärger und Übermut: „Anführungszeichen“ – Gedankenstrich — und …",
    "L'été, c'est déjà demain ; où est-ce qu'on va ? Ça coûte 12,50 €.",
    "¿Dónde está la niña? ¡Allí! Año nuevo, pingüino.",
    "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΤΕΛΟΣ ς",
    "日本語のテキスト、漢字かな交じり文。カタカナー・テスト「引用」",
    "我能吞下玻璃而不伤身体。繁體中文也要測試，全角，ＡＢＣ１２３。",
    "한국어 문장을 토큰으로 나눕니다. 각각의 음절 ㅋㅋㅋ",
    "שלום עולם, זה טקסט בעברית עִם נִקּוּד.",
    "مرحبا بالعالم، هذا نصٌّ عربيٌّ ١٢٣٤٥ و ۱۲۳",
    "हिन्दी में लिखा हुआ एक वाक्य। क्षत्रिय ज्ञान १२३",
    "ภาษาไทยไม่มีวรรคระหว่างคำ ๑๒๓",
    "தமிழ் எழுத்து, తెలుగు, ಕನ್ನಡ, മലയാളം, বাংলা, ગુજરાતી, ਪੰਜਾਬੀ, සිංහල",
    "ქართული ენა, Հայերեն, አማርኛ, ᏣᎳᎩ, ᠮᠣᠩᠭᠣᠯ, བོད་ཡིག, ខ្មែរ, ລາວ, မြန်မာ",
    "Tiếng Việt có nhiều dấu: nghiêng, ngả, nặng.",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕞𝕒𝕥𝕙 𝒔𝒄𝒓𝒊𝒑𝒕 ⅷ ½ ² ₃ ① Ⅻ",
]
EMOJI = [
    "👩‍👩‍👧‍👦 family, 👍🏽 skin, 🇩🇪🇫🇷 flags, 🏴󠁧󠁢󠁥󠁮󠁧󠁿, ❤️‍🔥, 1️⃣, ☺︎",
    "🙂🙃🙂 🤷🏻‍♀️text🤦text",
    "e\u0301 vs é, A\u030a vs Å, \u1112\u1161\u11ab vs 한, Z\u0351\u036b\u0343\u032a\u0302a\u0346lgo",
    "\u200bzero\u200cwidth\u200djoiner\ufeffbom\u2060",
]
CODE = [
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i=0;i<10;++i){ a[i]+=0x1F&~mask; } /* c */ // d\r\n",
    '{"key": [1, 2.5e-10, null], "nested": {"a\\nb": "\\u00e9"}}',
    "SELECT * FROM t WHERE a<>'b' AND c>=1;--x",
    '<div class="a">&nbsp;<b>bold</b></div>\n<!-- </ > -->',
    "https://example.com/a_b-c?d=e&f=%20#g  user@host.tld  C:\\dir\\file.txt ~/.x",
    "<a> </a>  </b> > </ >  </c> >,  x> y",
    "a = b == c != d <= e >= f && g || !h ... ___ --- === *** ``` $$ ##",
]
SPACE = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t\t", "\r\n", "\r\n\r\n", " \n", "\n ", " \n \n ",
    "a", " a", "a ", "  a", "a  ", "  a  ", "\ta", "a\t", "a\n", "\na", "a  b", "a   b", "a\n\nb", "a \n b", "a\r\nb\rc",
    " " * 17, " " * 64, "x" + " " * 33 + "y", "\n" * 40, "\t" * 40, "a" * 100, "ab " * 60, "\u00a0\u2003\u3000 x\u2028y\u2029z\u0085w",
    "1", "12", "123", "1234", "12345678901234567890", "a1b22c333", " 1", "  1", "   12 ", "3.14159,2.71", "1 2  3",
]  # fmt: skip
CONTROL = [
    "\x00", "\x00\x01\x02\x1b[31mred\x1b[0m\x7f", "\x1c\x1d\x1e\x1f a", "a\x0bb\x0cc", "\ufffd\ufffe", "\ud7ff\ue000\uf8ff",
    "\U000f0000\U0010fffd\u0378\U000e0001", "<0x0A><0xFF><0x41>", "\u2581", "a\u2581b", "\u2581\u2581 \u2581", " \u2581 ",
]  # fmt: skip
MARKUP = [
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|> a", "<|im_start|>  a", "x<|im_end|>y",
    "<|im_end|><|im_end|>", "<|im_end", "|im_end|>", "<<|im_end|>>", "<bos>a<eos>", "<start_of_turn>user\nx<end_of_turn>\n",
    "<b> bold</b>  x", "<table>\n\n<tr>", "</s>", "<s> a", "[INST] a [/INST]", "<|endoftext|>\n\n\n", "\n\n<|im_end|> \n",
]  # fmt: skip

ALL = [*PROSE, *EMOJI, *CODE, *SPACE, *CONTROL, *MARKUP]
ALL += [f"{a}{b}" for a, b in itertools.product(["word", " ", "\n", "é", "🙂"], [*MARKUP[:4], "1", "  x"])]
LONG = "\n".join([*PROSE, *EMOJI, *CODE, *MARKUP]) * 2

_PIECES = [
    *("a", "b", "The", " the", "word", " ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "'LL", "1", "23", "٣", "½"),
    *(
        "é",
        "e\u0301",
        "日",
        "本",
        "ー",
        "한",
        "ß",
        "Ω",
        "ж",
        "\u0e44",
        "🙂",
        "\u200d",
        "👩‍👧",
        "\xa0",
        "\u3000",
        "\x00",
    ),
    *("<", "|", ">", "</", "im_end", "<|im_end|>", "<|im_start|>", "<b>", "</b>", "<bos>", "\u2581", "_", "--", "."),
]


def texts(max_pieces: int = 20) -> st.SearchStrategy[str]:
    """Hostile mixtures, and arbitrary text without surrogates."""
    mixed = st.lists(st.sampled_from(_PIECES), max_size=max_pieces).map("".join)
    return mixed | st.text(st.characters(exclude_categories=["Cs"]), max_size=max_pieces)
