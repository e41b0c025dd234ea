//! The rules of all pre-tokenizers, by the names that GGUF files give them.
//!
//! A name of GGUF means the rule of llama.cpp, which differs from the published `tokenizer.json` for some vocabularies:
//! letters have no case outside ASCII, or none at all. Here such rules are written as llama.cpp computes them. Only
//! `tekken` and `gpt-4o` keep the published patterns.

use super::{Rule, Step};

/// GPT-2's words.
const GPT2: Step =
    Step::Pattern(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+");
/// LLaMA 3: contractions in any case, at most three digits per word, line breaks separate from other white space.
const LLAMA3: Step = Step::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
/// As LLaMA 3, with every digit as a word.
const QWEN2: Step = Step::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
/// As Qwen2, with combining marks within words.
const QWEN35: Step = Step::Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
/// As Qwen2, with line breaks separate from signs.
const SEED_CODER: Step = Step::Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
);
/// As Qwen2, without contractions.
const UFAKZEKA: Step =
    Step::Pattern(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
/// Mistral's Tekken: words also end where lower case changes to upper case.
const TEKKEN: Step = Step::Pattern(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
);
/// GPT-4o (Phi-4-mini): as Tekken, with contractions joined to their word and up to three digits.
const GPT4O: Step = Step::Pattern(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
);
/// GPT-4o as llama.cpp reads it: only ASCII letters have a case, and combining marks are signs.
const GPT4O_BY_ASCII: Step = Step::Pattern(
    r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
);
/// GPT-4o without a case, with combining marks within words: Youtu by single digits, Tiny Aya by three.
const YOUTU: Step = Step::Pattern(
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
);
const TINY_AYA: Step = Step::Pattern(
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
);
/// Kimi K2: Chinese characters separate from other letters, and contractions joined to their word.
const KIMI_K2: Step = Step::Pattern(
    r"[\u{3400}-\u{4DBF}\u{4E00}-\u{9FFF}\u{F900}-\u{FAFF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{2F800}-\u{2FA1F}]+|[^\r\n\p{L}\p{N}]?[\p{L}--\u{3400}-\u{4DBF}\u{4E00}-\u{9FFF}\u{F900}-\u{FAFF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{2F800}-\u{2FA1F}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
/// EXAONE MoE: words may be joined by single spaces between letters.
const EXAONE_MOE: Step = Step::Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]+|\s+",
);
/// DeepSeek V3: a sign joined to ASCII letters, words with combining marks, runs of signs.
const DEEPSEEK_V3: Step = Step::Pattern(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
);
/// Chinese and Japanese, as DeepSeek V3 and Youtu cut them out.
const CHINESE_JAPANESE: Step = Step::Pattern(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+");
/// Asian scripts, as DeepSeek LLM and Coder cut them out: nearly all from Samaritan to Yi, without white space.
const ASIAN: Step = Step::Pattern(r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}--\s]+");
/// Letters with a case that DeepSeek LLM lists.
const DEEPSEEK_LLM_LETTERS: Step = Step::Pattern(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}-\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}-\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}-\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
);
const DEEPSEEK_LLM_SIGNS: Step = Step::Pattern(
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}--\s]+",
);
/// BLOOM: anything but white space, brackets and the ends of sentences in some scripts.
const BLOOM: Step = Step::Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+");
const DIGIT: Step = Step::Pattern(r"\p{N}");
const DIGITS: Step = Step::Pattern(r"\p{N}+");
const UP_TO_THREE_DIGITS: Step = Step::Pattern(r"\p{N}{1,3}");
const THREE_ASCII_DIGITS: Step = Step::Pattern("[0-9][0-9][0-9]");
const LINE_BREAK: Step = Step::Pattern(r"[\r\n]");
/// Lines, and the line breaks between them.
const LINES: Step = Step::Pattern(r"[^\n]+|\n+");

/// The rule of a list of steps, for vocabularies in which words are merged and prompts have no BEGIN token.
const PLAIN: Rule = Rule {
    names: &[],
    steps: &[],
    keeps_known_words: false,
    adds_bos: false,
    separates_pairs: false,
    is_byte_level: true,
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "modern-bert",
            "jina-v2-de",
            "jina-v2-es",
            "jina-de",
            "jina-es",
            "gigachat",
        ],
        steps: &[GPT2],
        ..PLAIN
    },
    Rule {
        names: &["roberta-bpe", "jina-v1-en", "jina-v2-code"],
        steps: &[GPT2],
        separates_pairs: true,
        ..PLAIN
    },
    Rule {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[DIGIT, GPT2],
        ..PLAIN
    },
    Rule {
        names: &[
            "qwen2",
            "stablelm2",
            "deepseek-r1-qwen",
            "megrez",
            "hunyuan",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
            "grok-2",
            "solar-open",
            "kormo",
            "f2llmv2",
        ],
        steps: &[QWEN2],
        ..PLAIN
    },
    Rule {
        names: &["qwen35"],
        steps: &[QWEN35],
        ..PLAIN
    },
    Rule {
        names: &["seed-coder"],
        steps: &[SEED_CODER],
        ..PLAIN
    },
    Rule {
        names: &["ufakzeka"],
        steps: &[UFAKZEKA],
        ..PLAIN
    },
    Rule {
        names: &["laguna"],
        steps: &[LINES, QWEN2],
        ..PLAIN
    },
    Rule {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[LLAMA3],
        keeps_known_words: true,
        adds_bos: true,
        ..PLAIN
    },
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"],
        steps: &[LLAMA3],
        ..PLAIN
    },
    Rule {
        names: &["minicpm5"],
        steps: &[UP_TO_THREE_DIGITS, LLAMA3],
        keeps_known_words: true,
        ..PLAIN
    },
    Rule {
        names: &["tekken"],
        steps: &[TEKKEN],
        keeps_known_words: true,
        adds_bos: true,
        ..PLAIN
    },
    Rule {
        names: &["gpt-4o", "llama4"],
        steps: &[GPT4O],
        ..PLAIN
    },
    Rule {
        names: &["minimax-m2", "kanana2", "talkie"],
        steps: &[GPT4O_BY_ASCII],
        ..PLAIN
    },
    Rule {
        names: &["youtu"],
        steps: &[
            Step::Pattern(
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[！…“”‘’—：；，\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+",
            ),
            YOUTU,
        ],
        keeps_known_words: true,
        ..PLAIN
    },
    Rule {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[Step::ThousandsWithText, TINY_AYA],
        ..PLAIN
    },
    Rule {
        names: &["kimi-k2"],
        steps: &[KIMI_K2],
        ..PLAIN
    },
    Rule {
        names: &["superbpe"],
        steps: &[DIGITS, Step::Thousands],
        ..PLAIN
    },
    Rule {
        names: &["exaone-moe"],
        steps: &[EXAONE_MOE],
        ..PLAIN
    },
    Rule {
        names: &["deepseek-llm"],
        steps: &[
            LINE_BREAK,
            DEEPSEEK_LLM_LETTERS,
            DEEPSEEK_LLM_SIGNS,
            Step::Pattern(r"\s+$"),
            ASIAN,
            DIGITS,
        ],
        ..PLAIN
    },
    Rule {
        names: &["deepseek-coder"],
        steps: &[
            LINE_BREAK,
            Step::Pattern(r"\s?\p{L}+"),
            Step::Pattern(r"\s?\p{P}+"),
            ASIAN,
            DIGIT,
        ],
        ..PLAIN
    },
    Rule {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        steps: &[UP_TO_THREE_DIGITS, CHINESE_JAPANESE, DEEPSEEK_V3],
        ..PLAIN
    },
    Rule {
        names: &["afmoe"],
        steps: &[
            Step::ThousandsWithText,
            Step::Pattern(
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+",
            ),
            DEEPSEEK_V3,
        ],
        ..PLAIN
    },
    Rule {
        names: &["falcon"],
        steps: &[
            Step::Pattern(r"[\p{P}$+<=>^~|`]+"),
            GPT2,
            THREE_ASCII_DIGITS,
        ],
        ..PLAIN
    },
    Rule {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        steps: &[BLOOM],
        ..PLAIN
    },
    Rule {
        names: &["viking"],
        steps: &[BLOOM, DIGIT],
        ..PLAIN
    },
    // Gemma 4 merges characters, as SentencePiece does: only line breaks end a word.
    Rule {
        names: &["gemma4"],
        steps: &[LINES],
        adds_bos: true,
        is_byte_level: false,
        ..PLAIN
    },
    // The rule of converters that did not recognize the vocabulary.
    Rule {
        names: &["default"],
        steps: &[
            Step::Pattern(r"[\p{P}$+<=>^~|]+"),
            GPT2,
            DIGITS,
            THREE_ASCII_DIGITS,
        ],
        ..PLAIN
    },
];
