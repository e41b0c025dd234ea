"""The 1,000 lines that every tokenizer is tested on, some of them broken UTF-8. Always the same."""

import random

COUNT = 1000
# Between lines in lines.bin: line breaks are part of some of them.
SEPARATOR = b"\x1e"

TEXTS = """The quick brown fox jumps over the lazy dog near the river bank.
She said: "I'll be there at 7:30, won't you?" — but they'd already left, hadn't they?
In 1984, 12,345.67 people (roughly 50% of 24691) voted; the margin was ±0.003.
DON'T SHOUT! WE'RE ALL HERE, AREN'T WE? YOU'LL SEE; THEY'VE GONE, HE'D KNOW, I'M SURE.
naïve café résumé Ångström Zürich Łódź İstanbul Straße façade coöperate ſhort Ǆ ǅ
Antidisestablishmentarianism and Donaudampfschifffahrtsgesellschaftskapitän are long words.
Visit https://example.org/path?query=1&other=two#anchor or mail first.last+tag@example.co.uk!
The camelCaseIdentifier, snake_case_name, SCREAMING_CASE and kebab-case-name met XMLHttpRequest2.
La vie est belle ; l'été, c'est l'époque où j'aime n'importe quoi « bien sûr ».
Съешь же ещё этих мягких французских булок, да выпей чаю. Это 2-й тест №5.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Καλημέρα κόσμε!
你好,世界!今天天气很好,我们去公园散步吧。价格是123元。
自然语言处理是人工智能的一个重要方向,研究人与计算机之间的通信。
吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。
カタカナとひらがなと漢字、そしてABCと123を混ぜる。ヴァイオリン
한국어 문장은 띄어쓰기가 있습니다. 안녕하세요, 세계! 3개월 뒤에 봐요.
مرحبا بالعالم! كيف حالك اليوم؟ الرقم ١٢٣٤٥ والنص العربيّ مُشَكَّل.
שלום עולם! מה שלומך היום? בְּרֵאשִׁית
नमस्ते दुनिया! आप कैसे हैं? संख्या १२३४५ और क्षेत्रज्ञ।
สวัสดีชาวโลก วันนี้อากาศดีมาก ๑๒๓
Xin chào thế giới! Tiếng Việt có nhiều dấu thanh: ặ ẫ ộ ữ.
বাংলা ভাষা খুব মিষ্টি। தமிழ் மொழி பழமையானது. తెలుగు ಕನ್ನಡ മലയാളം
ⅠⅡⅢ ½ ¾ ² ³ ① ② ㊿ 𝟙𝟚𝟛 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ ﬂ ™ © ® № ℃
∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ⇒ ∑_{i=1}^{n} i² ≤ ∞ ≠ √2 ≈ 1.41421356
€100 £20 ¥3000 ₹500 $9.99 ¢5 1e-5 0xDEADBEEF 0b1010 1_000_000 3.14159265358979
""".splitlines()

CODE = [
    "def fibonacci(n: int) -> int:\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "fn main() {\n\tlet xs: Vec<u32> = (0..10).map(|x| x * x).collect();\n\tprintln!(\"{xs:?}\");\n}\n",
    "for (int i = 0; i < n; ++i) {\n        sum += a[i] * b[i];  // dot product\n}\n\n\n",
    "const f = async ({ a, b = 2, ...rest }) => { await fetch(`/api/${a}?b=${b}`); };\r\n\r\n",
    "SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name HAVING COUNT(*) > 1;\n",
    '<div class="box"><p>Hello &amp; <b>bye</b></p><br/></div>\n<!-- comment -->\n',
    "#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))\nint main(void){return 0;}\n",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n\\u00e9"}}',
    "if [ -f \"$FILE\" ]; then echo 'yes' | sed -e 's/y/n/g' > /dev/null 2>&1; fi\n",
    "class A:\n\tdef __init__(self):\n\t\tself.x=1\n\n\n\t\tpass # done\n",
    "\\begin{equation}\n  E = mc^2 \\label{eq:one}\n\\end{equation}\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- [ ] item\n* **bold** _it_ ~~no~~\n",
]

EMOJI = [
    "🙂", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇩🇪🇫🇷🇯🇵", "🤷🏿‍♀️", "1️⃣", "👨🏻‍💻", "🫠", "🧑‍🚀", "☃", "♥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🥹🥹🥹",
]
MARKS = ["e\u0301", "a\u0300\u0323", "n\u0303o", "Z\u0351\u036b\u0343a\u0320\u0326l\u0321g\u0322o", "\u0301", "q\u0307\u0323", "क्‍ष", "\u200d", "\ufe0f"]
SPACES = [
    " ", "  ", "   ", "    ", "        ", " " * 31, " " * 40, "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n\n", "\r\n", " \n ",
    "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x0b", "\x0c", "\x85", "\ufeff", "  \n\n  ", "\n \n  \n",
]
SPECIAL = [
    "<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<bos>", "<eos>",
    "<start_of_turn>", "<end_of_turn>", "<tool>", "<tool_call>", "</tool_call>", "<0x0A>", "<0xE2>", "[PAD151665]",
    "<|fim_prefix|>", "<repo_name>", "<h1>", "</code>", "<unused5>", "<|im_start", "im_end|>", "▁", "▁the", "Ġthe", "Ċ", "<<s>>",
]
BROKEN = [
    b"\xff", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\x80\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xf0\x9f", b"\xe2\x28\xa1", b"\xfe\xff", b"\xf8\x88\x80\x80\x80", b"\xc3\x28", b"a\xcc", b"\xf0\x28\x8c\xbc",
]


def sentence(generator):
    words = generator.choice(TEXTS).split(" ")
    start = generator.randrange(len(words))
    return " ".join(words[start : start + generator.randint(1, 14)])


def long_word(generator):
    kind = generator.randrange(5)
    if kind == 0:
        return "".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(generator.randint(60, 400)))
    if kind == 1:
        return generator.choice("a=-_.#*0x!你あé🙂") * generator.randint(20, 300)
    if kind == 2:
        return "".join(str(generator.randrange(10)) for _ in range(generator.randint(20, 80)))
    if kind == 3:
        return "".join(chr(generator.choice([*range(0x4E00, 0x9FA5)])) for _ in range(generator.randint(10, 60)))
    return "".join(generator.choice("+/ABCDEFabcdef0123456789") for _ in range(generator.randint(40, 160))) + "=="


def any_characters(generator):
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x590), (0x600, 0x700), (0x900, 0xE00), (0x1E00, 0x2C00)]
    ranges += [(0x3000, 0x3100), (0xAC00, 0xD7A4), (0xFB00, 0xFFFE), (0x1F300, 0x1FB00), (0x20000, 0x20100), (1, 0x20)]
    return "".join(chr(generator.randrange(*generator.choice(ranges))) for _ in range(generator.randint(1, 24)))


def line(generator):
    """One line: one to five parts of any sort, with something or nothing between them."""
    sorts = [
        (30, lambda: sentence(generator)),
        (12, lambda: generator.choice(CODE)),
        (10, lambda: "".join(generator.choice(EMOJI) for _ in range(generator.randint(1, 4)))),
        (8, lambda: "".join(generator.choice(MARKS) for _ in range(generator.randint(1, 3)))),
        (14, lambda: generator.choice(SPACES)),
        (10, lambda: generator.choice(SPECIAL)),
        (4, lambda: long_word(generator)),
        (8, lambda: any_characters(generator)),
        (6, lambda: str(generator.randrange(10 ** generator.randint(1, 12)))),
        (6, lambda: generator.choice(BROKEN)),
    ]
    weights = [weight for weight, _ in sorts]
    parts = []
    for _ in range(generator.randint(1, 5)):
        part = generator.choices(sorts, weights)[0][1]()
        parts.append(part if isinstance(part, bytes) else part.encode())
        parts.append(generator.choice([b" ", b" ", b"", b"", b"  ", b"\n", b", "]))
    if generator.random() < 0.7:
        parts.pop()
    return b"".join(parts).replace(SEPARATOR, b"")


def lines():
    generator = random.Random(1)
    fixed = [text.encode() for text in TEXTS + CODE + EMOJI + MARKS + SPACES + SPECIAL] + BROKEN + [b""]
    return fixed + [line(generator) for _ in range(COUNT - len(fixed))]
