"""Writes what the test of pre-tokenizers needs: llama.cpp's tokens for every name that Triad accepts.

    pre.gguf            a byte-level vocabulary, trained on TEXTS without a pre-tokenizer: its merges cross the borders of
                        all words, so that a different split gives different tokens
    pre-gemma4.gguf     the same for the vocabulary of characters
    pre-texts.json      TEXTS
    NAME.pre            for the vocabulary NAME: a line for each pre-tokenizer with its name and a hash of the ids of each
                        text

`tekken`, `gpt-4o` and `llama4` keep the published patterns, which the library `tokenizers` has: where llama.cpp's ids
differ (combining marks, and letters with a case outside ASCII) its hash is marked by `*`, and the library's stands here.

    python pre.py                       # the vocabularies of this folder
    python pre.py NAME.gguf ...         # those of real models

Needs tokenizers, gguf and xllamacpp. Written with tokenizers 0.22, gguf 0.19 and xllamacpp 2026.10.11549.
"""

import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import gguf
from engines import (
    CONTROL, NORMAL, PRE_TOKENIZERS, USER_DEFINED, Vocabulary, encode_with, hugging_face, llama_cpp, with_weights,
)
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
PUBLISHED = {"tekken": "tekken", "gpt-4o": "gpt-4o", "llama4": "gpt-4o"}
NAMES = """
gpt-2 phi-2 mpt olmo jais trillion granite-docling a.x-4.0 mellum exaone4 modern-bert jina-v1-en jina-v2-code jina-v2-de
jina-v2-es jina-de jina-es roberta-bpe gigachat smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 qwen2
stablelm2 deepseek-r1-qwen megrez hunyuan bailingmoe bailingmoe2 llada-moe grok-2 solar-open kormo f2llmv2 qwen35 seed-coder
ufakzeka laguna llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe
glm4 minicpm5 tekken gpt-4o llama4 minimax-m2 kanana2 talkie youtu tiny_aya cohere2moe kimi-k2 superbpe exaone-moe
deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense joyai-llm hy_v4 afmoe falcon bloom poro-chat gpt3-finnish viking default
""".split()

TEXTS = [
    "Hello, world! It's 9:30; we'll meet at Bob's, won't we? I'd say they've gone, and you're late, I'm SURE.",
    "DON'T SHOUT, IT'S LATE; WE'LL GO, THEY'RE HERE, I'VE, I'D, I'M, YOU'RE 'tis 'Twas o'clock rock'n'roll 's 'S",
    "0 12 123 1234 12345 123456 1234567 1234567890 0012 3.14159 1,234,567.89 -42 1e-10 0xDEADBEEF 2024-12-31",
    "a1 a12 a123 a1234b 12ab 1234ab ab12cd345ef 12_34 1234_ _1234 x86_64 h264 3D 1st 22nd 1234é é1234 1234中5678",
    "١٢٣٤٥ ۱۲۳۴ १२३४५६ ๑๒๓๔ ½ ¾ ² ³ x² ①②③ Ⅷ ⅩⅡ 12²3456 𝟙𝟚𝟛𝟜 ㊿ 万 12３４５6",
    "camelCase XMLHttpRequest2 getURLFromJSON snake_case SCREAMING_CASE kebab-case iPhone eBay McDonald's",
    "ÉCOLE École éCOLE ÀÉÎ straßeGROSS ПриветМир ПРИВЕТмир ΑθήναGREECE ǅ ǈ ſhort ŁódźŻółw İstanbul",
    "e\u0301te\u0301 a\u0323\u0300b n\u0303o Z\u0351\u036b\u0343alg\u0322o\u0321 \u0301 x\u0301\u0302y A\u0301B\u0301 1\u03012 .\u0301. ~\u0301",
    "नमस्ते दुनिया! क्षेत्रज्ञ हिन्दी में ज़्यादा।बाद १२ तेलुगु తెలుగు தமிழ் বাংলা",
    "สวัสดีชาวโลก วันนี้อากาศดีมาก กขฃaคฅ ๑๒๓ภาษาไทย กaกb ນີ້ລາວ ភាសាខ្មែរ မြန်မာ",
    "مرحبا بالعالم! كيف حالك؟ العربيّ مُشَكَّل، نص؛ جملة۔ اردو میں۔ فارسی‌ها",
    "שלום עולם! בְּרֵאשִׁית בָּרָא אֱלֹהִים; מה־שלומך?",
    "你好,世界!今天天气很好。价格是123元,共4567件。中文English混排2024年12月31日",
    "「吾輩は猫である」。カタカナとひらがな、そしてABCと123を混ぜる。ヴァイオリン ｶﾀｶﾅ ー々〆",
    "한국어 문장은 띄어쓰기가 있습니다. 안녕하세요, 세계! 3개월 뒤에 봐요. ㅋㅋㅋ ㄱㄴㄷ 조합 \u1112\u1161\u11ab",
    "ㄅㄆㄇㄈ 注音 龦鿿㐀䶿豈﫿𠀀𪛟𪜀⺀⼀⿕〇々 一丁 x你y你 z",
    "🙂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇩🇪🇫🇷 🤷🏿‍♀️ 1️⃣ a🙂b 🙂🙂 ☃♥™©® 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "a  b   c    d     e      f\u00a0g\u2003h\u3000i \u3000 j\u00a0\u00a0k \u2028l\u2029m\u205fn\u202fo",
    "line\nline\n\nline\n\n\nline\r\nline\r\n\r\nline\rline\n \nline \n line\n\tline\t\n\n  \n   x",
    "\n\n\n", "   ", " \n", "\t\t\tx\t y \t z", "a \n\n b  \n\n\n  c \r\n d", "x    \n    y", "\n\n\n\n\n x", "trailing   ",
    "trailing newline\n\n", "123   \n456  7  8", "ends with digits 12345", ".   ,  \n !  ",
    "def f(x: int) -> int:\n    if x<=1:\n\t\treturn x  # one\n    return f(x-1)+f(x-2)\n\n\nprint(f(10))\n",
    "fn main() {\r\n    let v: Vec<u32> = (0..10).map(|x| x * x).collect();\r\n    println!(\"{v:?}\");\r\n}\r\n",
    "for(int i=0;i<n;++i){sum+=a[i]*b[i];} // ~dot~ ~~no~~ `code` ^caret^ $x=$y+1; a|b|c a&b a%b #tag @me <b>x</b>",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n\\u00e9"}} https://example.org/a/b?c=1&d=2#e \\begin{x}',
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~ ...!!! ?!?! --- === *** ((( ))) <<<>>> ~~ ~a ~ a~b -a .b /c //d/ :) ^_^",
    "“quotes” ‘single’ it’s don’t „unten“ «guillemets» — – … ‚ ‹ › · • † § ¶ ¿Qué? ¡Sí! €100 £20 ¥3000 ₹5 ±× ÷ ≠ ∑ √2 →",
    "！＂＃ＡＢＣ０１２，。；：？（全角）【括号】《书名》、〜～—…·￥ ︰﹏ ｟｠ 〿",
    "\x00\x01\x02 \x07bell\x08 \x0bvt\x0c ff \x1b[31mred\x1b[0m \x7f\x85\x9f\xad soft\u200bzero\u200c\u200d\ufeffbom\u061c\ue000\U0010fffd",
    "mixedСловоWordλόγος言葉คำكلمة1विश्व2слово3 a1b2c3 АБВ123abc тест2Test ÄÖÜß3 ñ4",
]


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:8]


def write_vocabulary(path, model, tokenizer, pieces, types):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("gpt-2" if model == "gpt2" else model)
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(pieces.index("<s>"))
    writer.add_eos_token_id(pieces.index("</s>"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def make_byte_level(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.get)
    markers = {"<s>": CONTROL, "</s>": CONTROL, "<mask>": CONTROL}
    write_vocabulary(path, "gpt2", tokenizer, pieces + list(markers), [NORMAL] * len(pieces) + list(markers.values()))


def make_characters(path):
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    # A run of line breaks is a token that no merges lead to.
    run = "\n" * 5
    texts = [text.replace(" ", "▁") for text in TEXTS if run not in text]
    # Other characters are spelled in bytes. No token of llama.cpp can have a zero.
    texts = ["".join(letter for letter in text if "\0" < letter < "\u3042") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.get)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    markers = {"<s>": CONTROL, "</s>": CONTROL, run: NORMAL, "<b>": USER_DEFINED}
    types = [NORMAL] * len(pieces) + [6] * 256 + list(markers.values())
    write_vocabulary(path, "gemma4", tokenizer, pieces + bytes_ + list(markers), types)


def hashes(path, name):
    """A line for the pre-tokenizer `name`."""
    with tempfile.TemporaryDirectory() as folder:
        changed = {} if name == "gemma4" else {"pre": name}
        encode = llama_cpp(with_weights(gguf.GGUFReader(path), Path(folder) / "model.gguf", **changed))
        ids = [encode(text, False) for text in TEXTS]
    if name not in PUBLISHED:
        return " ".join([name, *map(digest, ids)]), 0
    vocabulary = Vocabulary(path)
    vocabulary.pre = PUBLISHED[name]
    around = vocabulary.around()[0] if PRE_TOKENIZERS[vocabulary.pre][1] else []
    published = encode_with(hugging_face(vocabulary), (around, []))
    both = [(published(text, False), of_text) for text, of_text in zip(TEXTS, ids)]
    marked = [digest(right) + "*" * (right != other) for right, other in both]
    return " ".join([name, *marked]), sum(right != other for right, other in both)


def main():
    paths = list(map(Path, sys.argv[1:]))
    if not paths:
        paths = [FOLDER / "pre.gguf", FOLDER / "pre-gemma4.gguf"]
        make_byte_level(paths[0])
        make_characters(paths[1])
        (FOLDER / "pre-texts.json").write_text(json.dumps(TEXTS, indent=0) + "\n")
    for path in paths:
        lines, count, differ = [], 0, {}
        for name in ["gemma4"] if path.stem == "pre-gemma4" else NAMES:
            try:
                line, different = hashes(path, name)
            except RuntimeError as error:
                print(name, "is refused by llama.cpp:", error)
                continue
            lines.append(line)
            if different:
                differ[name] = different
        (FOLDER / f"{path.stem}.pre").write_text("\n".join(lines) + "\n")
        print(f"{path.name}: {len(lines)} names × {len(TEXTS)} texts; llama.cpp differs from the published rule: {differ}")


if __name__ == "__main__":
    main()
