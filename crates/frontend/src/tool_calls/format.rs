//! The formats of models' calls: how a chat template reveals them, and the words that mark them in an answer.

use triad_engine::Model;
use triad_model::tokenizer::{TokenKind, Tokenizer};

use crate::error::Result;

/// The format of a model's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere in an answer and any number of times: Hermes,
    /// Qwen, SmolLM2 (which may write an array of calls in it), Granite 4, and models whose template does not know
    /// functions.
    Hermes,
    /// An answer that is `{"name": …, "parameters": {…}}`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` with `[CALL_ID]id` before
    /// `[ARGS]` in some models: Mistral.
    Mistral,
    /// An answer that is `[name(argument=value, …), …]` in Python's syntax, perhaps in a code block or between
    /// `<|python_start|>` and `<|python_end|>`: Gemma 3, Llama 3.2 and 4.
    Python,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder.
    Xml,
    /// The functions of [`Xml`](Self::Xml) between `<seed:tool_call>` and `</seed:tool_call>`: Seed-OSS.
    SeedXml,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5 and later.
    Glm,
    /// `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke></minimax:tool_call>`.
    MiniMax,
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` in a section: DeepSeek V3.1. R1 and V3 write
    /// `function` before the separator, and the name with a code block after it.
    DeepSeek,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` in a section: Kimi K2.
    Kimi,
    /// `<|tool_call_start|>[name(argument=value)]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<|tool_call|>` and an array of calls as JSON: Granite 3.
    Granite,
    /// `<|tool_call|>` or `functools`, an array of calls as JSON, and perhaps `<|/tool_call|>`: Phi-4.
    Phi4,
    /// `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`: FunctionGemma.
    FunctionGemma,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`: Command R7B and A.
    Command,
    /// `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// Messages of several channels: gpt-oss. A call is a message `to=functions.name`.
    Harmony,
}

/// The words around the calls of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// The word before a call, or before several.
    pub(super) open: &'static str,
    /// The word after it; empty if the end of the answer ends the calls.
    pub(super) close: &'static str,
}

/// A template's words, each with the format that it reveals. The first one that a template contains counts.
const SIGNS: [(&[&str], ToolFormat); 18] = [
    (&["<|channel|>", "<|message|>"], ToolFormat::Harmony),
    (&["<｜tool▁call▁begin｜>"], ToolFormat::DeepSeek),
    (&["<|tool_call_argument_begin|>"], ToolFormat::Kimi),
    (&["<|tool_call_start|>"], ToolFormat::Lfm2),
    (&["<|tool_list_start|>"], ToolFormat::Lfm2),
    (&["<|tool_call>"], ToolFormat::Gemma4),
    (&["<start_function_call>"], ToolFormat::FunctionGemma),
    (&["<seed:tool_call>"], ToolFormat::SeedXml),
    (&["<minimax:tool_call>"], ToolFormat::MiniMax),
    (&["<|START_ACTION|>"], ToolFormat::Command),
    (&["<TOOLCALL>"], ToolFormat::Nemotron),
    (&["<tool_call>", "<function="], ToolFormat::Xml),
    (&["<tool_call>", "<arg_key>"], ToolFormat::Glm),
    (&["<tool_call>"], ToolFormat::Hermes),
    (&["<|tool|>", "<|/tool|>"], ToolFormat::Phi4),
    (&["<|tool_call|>"], ToolFormat::Granite),
    (&["[TOOL_CALLS]"], ToolFormat::Mistral),
    (&["<|python_start|>"], ToolFormat::Python),
];

impl ToolFormat {
    /// Detects the format from the text of a chat template.
    pub fn of_template(template: Option<&str>) -> Self {
        let template = template.unwrap_or_default();
        let has = |text: &str| template.contains(text);
        let sign = SIGNS
            .iter()
            .find(|(words, _)| words.iter().all(|word| has(word)));
        if let Some((_, format)) = sign {
            *format
        } else if has("tool_code") || has("func_name1(params_name1") {
            Self::Python
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Self::Llama3
        } else {
            Self::Hermes
        }
    }

    /// Detects the format as [`of_template`](Self::of_template) does. A template that lists functions without an
    /// example of a call leaves the words to the vocabulary.
    pub fn of_model(template: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let format = Self::of_template(template);
        let lists = template.is_some_and(super::template_lists_tools);
        let is_known = template.is_some_and(|template| template.contains("<tool_call>"));
        if format != Self::Hermes || !lists || is_known {
            return format;
        }
        let formats = [
            Self::Lfm2,
            Self::Gemma4,
            Self::FunctionGemma,
            Self::DeepSeek,
        ];
        let has = |format: &Self| {
            tokenizer
                .id(format.marks().map_or("", |marks| marks.open))
                .is_some()
        };
        formats.into_iter().find(has).unwrap_or(format)
    }

    /// Returns the format of the calls in answers of `model`, and the control tokens among its words. A reader of this
    /// format needs an answer whose text has their names
    /// ([`GenerateOptions::spelled`](triad_engine::GenerateOptions::spelled)).
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn of_answers(model: &Model) -> Result<(Self, Vec<u32>)> {
        let tokenizer = model.tokenizer()?;
        let template = model.chat_template();
        let template = template.map(|template| template.for_tools().source());
        let format = Self::of_model(template, tokenizer);
        Ok((format, format.control_words(tokenizer)))
    }

    /// Returns the words around calls; `None` for formats in which an answer is calls as a whole.
    pub(super) fn marks(self) -> Option<Marks> {
        let (open, close) = match self {
            Self::Hermes | Self::Xml | Self::Glm => ("<tool_call>", "</tool_call>"),
            Self::SeedXml => ("<seed:tool_call>", "</seed:tool_call>"),
            Self::MiniMax => ("<minimax:tool_call>", "</minimax:tool_call>"),
            Self::DeepSeek => ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            Self::Kimi => ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            Self::Lfm2 => ("<|tool_call_start|>", "<|tool_call_end|>"),
            Self::Granite => ("<|tool_call|>", ""),
            Self::Phi4 => ("<|tool_call|>", "<|/tool_call|>"),
            Self::FunctionGemma => ("<start_function_call>", "<end_function_call>"),
            Self::Gemma4 => ("<|tool_call>", "<tool_call|>"),
            Self::Command => ("<|START_ACTION|>", "<|END_ACTION|>"),
            Self::Nemotron => ("<TOOLCALL>", "</TOOLCALL>"),
            Self::Mistral => ("[TOOL_CALLS]", ""),
            Self::Llama3 | Self::Python | Self::Harmony => return None,
        };
        Some(Marks { open, close })
    }

    /// Returns the control tokens of a vocabulary that are words of this format. An answer is read with their names as
    /// a part of its text.
    pub fn control_words(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let marks = self.marks();
        let around = marks.iter().flat_map(|marks| [marks.open, marks.close]);
        let within: &[&str] = match self {
            Self::Mistral => &["[ARGS]", "[CALL_ID]"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Python => &["<|python_start|>", "<|python_end|>"],
            Self::Glm => &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
            Self::DeepSeek => &[
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
            ],
            Self::Kimi => &[
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
            ],
            Self::FunctionGemma => &["<escape>"],
            Self::Gemma4 => &["<|\"|>"],
            Self::Harmony => &[
                "<|start|>",
                "<|channel|>",
                "<|constrain|>",
                "<|message|>",
                "<|end|>",
                "<|return|>",
                "<|call|>",
            ],
            _ => &[],
        };
        around
            .chain(within.iter().copied())
            .filter_map(|word| control_word(tokenizer, word))
            .collect()
    }

    /// Returns the field of a call that has the arguments.
    pub(super) fn arguments(self) -> &'static str {
        if self == Self::Llama3 {
            "parameters"
        } else {
            "arguments"
        }
    }
}

/// Returns the control token whose name is `word`.
pub(crate) fn control_word(tokenizer: &Tokenizer, word: &str) -> Option<u32> {
    tokenizer
        .id(word)
        .filter(|token| tokenizer.token_kind(*token) == TokenKind::Control)
}
