//! The classes of `transformers` that have own special tokens, or own rules for the tokens around a text.

use serde_json::Value;

use super::config::Config;

/// A version of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// 4.57
    Four,
    /// 5.24
    Five,
}

/// A class of tokenizers.
pub(super) struct Class {
    /// Its name without `Fast`.
    name: &'static str,
    /// The tokens of fields that no file states: in both versions, and in version 5 only.
    defaults: &'static [(&'static str, &'static str)],
    defaults_of_five: &'static [(&'static str, &'static str)],
    /// Whether version 4 makes the texts of these fields control tokens that are matched exactly.
    stated_by_four: &'static [&'static str],
    /// In version 4, whether BOS is added to a text by default, whatever `post_processor` has; `None` for a class that
    /// follows it.
    adds_bos: Option<bool>,
    /// Whether version 5 adds no tokens around a text, whatever `post_processor` has.
    pub(super) adds_none_in_five: bool,
    /// Whether version 5 adds all special tokens once more.
    pub(super) adds_again: bool,
}

const CLASS: Class = Class {
    name: "",
    defaults: &[],
    defaults_of_five: &[],
    stated_by_four: &[],
    adds_bos: None,
    adds_none_in_five: false,
    adds_again: false,
};
const END_OF_TEXT: &str = "<|endoftext|>";
const LLAMA: &[(&str, &str)] = &[
    ("unk_token", "<unk>"),
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
];
const GPT2: &[(&str, &str)] = &[
    ("unk_token", END_OF_TEXT),
    ("bos_token", END_OF_TEXT),
    ("eos_token", END_OF_TEXT),
];

const CLASSES: [Class; 6] = [
    Class {
        name: "LlamaTokenizer",
        defaults: LLAMA,
        adds_bos: Some(true),
        ..CLASS
    },
    Class {
        name: "GemmaTokenizer",
        defaults: &[
            ("unk_token", "<unk>"),
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("pad_token", "<pad>"),
        ],
        defaults_of_five: &[("mask_token", "<mask>")],
        adds_bos: Some(true),
        ..CLASS
    },
    Class {
        name: "CohereTokenizer",
        defaults: &[
            ("unk_token", "<UNK>"),
            ("bos_token", "<BOS_TOKEN>"),
            ("eos_token", "<|END_OF_TURN_TOKEN|>"),
        ],
        defaults_of_five: &[
            ("pad_token", "<PAD>"),
            ("cls_token", "<CLS>"),
            ("sep_token", "<SEP>"),
            ("mask_token", "<MASK_TOKEN>"),
        ],
        adds_bos: Some(true),
        adds_again: true,
        ..CLASS
    },
    Class {
        name: "GPT2Tokenizer",
        defaults: GPT2,
        ..CLASS
    },
    Class {
        name: "GPTNeoXTokenizer",
        defaults: GPT2,
        defaults_of_five: &[("pad_token", "<|padding|>")],
        adds_bos: Some(false),
        adds_none_in_five: true,
        ..CLASS
    },
    Class {
        name: "Qwen2Tokenizer",
        defaults: &[
            ("unk_token", END_OF_TEXT),
            ("eos_token", END_OF_TEXT),
            ("pad_token", END_OF_TEXT),
        ],
        stated_by_four: &["unk_token", "bos_token", "eos_token", "pad_token"],
        adds_again: true,
        ..CLASS
    },
];

impl Class {
    /// Returns the class that `tokenizer_class` names, if it has own rules.
    pub(super) fn of(config: &Config<'_>) -> Option<&'static Self> {
        let name = config.value["tokenizer_class"].as_str()?;
        let name = name.strip_suffix("Fast").unwrap_or(name);
        CLASSES.iter().find(|class| class.name == name)
    }

    /// Returns whether version 5 makes the tokenizer from the vocabulary alone; of LLaMA's, if that is not of bytes.
    pub(super) fn is_made_of_vocabulary(&self, is_byte_level: bool) -> bool {
        self.name != "LlamaTokenizer" || !is_byte_level
    }

    /// Returns the token of a field that no file states. Version 5 makes its own defaults control tokens, also those that
    /// `is_known` has in a tokenizer: that is left out, since version 4 and the files of Gemma do not.
    pub(super) fn default(
        &self,
        version: Version,
        field: &str,
        is_known: &dyn Fn(&str) -> bool,
    ) -> Option<&'static str> {
        let default = |defaults: &[(&str, &'static str)]| {
            let default = defaults.iter().find(|(name, _)| *name == field);
            default.map(|(_, text)| *text)
        };
        let of_five = default(self.defaults_of_five)
            .filter(|text| version == Version::Five && !is_known(text));
        default(self.defaults).or(of_five)
    }

    /// Returns whether the bare text of a field becomes a control token that is matched exactly.
    pub(super) fn states(&self, version: Version, field: &str) -> bool {
        version == Version::Four && self.stated_by_four.contains(&field)
    }

    /// Returns whether version 4 adds BOS and EOS; `None` if it follows `post_processor`.
    pub(super) fn adds(&self, config: &Value) -> Option<(bool, bool)> {
        let adds_bos = self.adds_bos?;
        let stated = |field: &str, default| match config.get(field) {
            None => default,
            Some(value) => value == true,
        };
        Some((
            stated("add_bos_token", adds_bos),
            stated("add_eos_token", false),
        ))
    }

    /// Checks that version 4 has the tokens that it adds.
    ///
    /// # Errors
    /// The reason why it raises an exception.
    pub(super) fn check(&self, config: &Value, has_bos: bool, has_eos: bool) -> Result<(), String> {
        let missing = match self.adds(config) {
            Some((true, _)) if !has_bos => "bos_token",
            Some((_, true)) if !has_eos => "eos_token",
            _ => return Ok(()),
        };
        Err(format!(
            "`{missing}` is not given, but `add_{missing}` is true, as it may be by default"
        ))
    }
}
