//! The fields of Ollama's API.

use super::chat::{CHOICE, TOOL};
use super::{Field, followed, ignored, noted, refused, with};

const PICTURES: &str = "in base64; refused for models that read only text";
const LOADING: &str = "the options of the server decide how models are loaded";
const SAMPLERS: &str =
    "this server samples only with temperature, top_k, top_p, min_p and penalties";

pub(super) const CHAT: &[Field] = &[
    followed("model", "M"),
    with("messages", "M", MESSAGE),
    with("tools", "M", TOOL),
    with("tool_choice", "T", CHOICE),
];

pub(super) const GENERATE: &[Field] = &[
    followed("model", "M"),
    noted("prompt", "M", "without it, the model is loaded"),
    followed("system", "M"),
    noted("raw", "M", "true continues the prompt as it is"),
    noted(
        "suffix",
        "M",
        "the text after the completion; refused for models without tokens for filling in the middle",
    ),
    refused(
        "template",
        "M",
        &["\"\""],
        "the model's own template is used",
    ),
    noted(
        "context",
        "M",
        "the context of this server's answer before; refused with raw, suffix, and as tokens of another server",
    ),
    noted("images", "M", PICTURES),
];

/// The fields that `/api/chat` and `/api/generate` share.
pub(super) const HOW: &[Field] = &[
    noted("format", "M", "json, or a JSON schema"),
    with("options", "M", OPTIONS),
    refused("lora", "T", &["[]"], "expected /v1/chat/completions"),
    noted("max_output_tokens", "T", "alias of options.num_predict"),
    noted("max_tokens", "T", "alias of options.num_predict"),
    noted("temperature", "T", "alias of options.temperature"),
    noted("top_k", "T", "alias of options.top_k"),
    noted("top_p", "T", "alias of options.top_p"),
    noted("presence_penalty", "T", "alias of options.presence_penalty"),
    noted(
        "frequency_penalty",
        "T",
        "alias of options.frequency_penalty",
    ),
    noted("seed", "T", "alias of options.seed"),
    noted("stop", "T", "alias of options.stop"),
    noted("stream", "M", "the default is true"),
    noted("keep_alive", "M", KEEP_ALIVE),
    noted(
        "think",
        "M",
        "true is refused for models that do not mark reasoning; levels need a template that reads them",
    ),
    followed("logprobs", "M"),
    followed("top_logprobs", "M"),
    ignored(
        "truncate",
        "M",
        "prompts are never cut: one that exceeds the server's context is refused",
    ),
    refused("shift", "M", &["false"], "the context is never shifted"),
];

const KEEP_ALIVE: &str = "the time after which an idle model leaves the memory; no effect on a server whose keys are separate";

const MESSAGE: &[Field] = &[
    followed("role", "M"),
    followed("content", "M"),
    noted("thinking", "M", "if the template reads it"),
    with(
        "tool_calls",
        "M",
        &[
            followed("id", "M"),
            ignored("type", "M", "calls are of functions"),
            with(
                "function",
                "M",
                &[
                    followed("name", "M"),
                    noted("arguments", "M", "an object"),
                    ignored("index", "M", "the order of the calls counts"),
                    ignored("description", "M", "a copy of the tool's description"),
                ],
            ),
        ],
    ),
    noted("tool_name", "M", "the tool whose result the message has"),
    noted("name", "M", "alias of tool_name, and the author's name"),
    followed("tool_call_id", "M"),
    noted("images", "M", PICTURES),
];

pub(super) const OPTIONS: &[Field] = &[
    noted("num_predict", "M", "-1 and -2 mean no limit"),
    followed("temperature", "M"),
    followed("top_k", "M"),
    followed("top_p", "M"),
    followed("min_p", "M"),
    noted(
        "repeat_penalty",
        "M",
        "it covers all tokens of the prompt and the completion",
    ),
    followed("presence_penalty", "M"),
    followed("frequency_penalty", "M"),
    noted("seed", "M", "-1 means a different seed for each request"),
    followed("stop", "M"),
    noted(
        "repeat_last_n",
        "M",
        "0 turns penalties off, and -1 covers all tokens, which is the default; 64 is the default of a request without penalties; others are refused",
    ),
    refused(
        "penalize_newline",
        "M",
        &["true"],
        "penalties cover all tokens",
    ),
    refused("typical_p", "M", &["1"], SAMPLERS),
    refused("tfs_z", "M", &["1"], SAMPLERS),
    refused("mirostat", "M", &["0"], SAMPLERS),
    ignored("mirostat_tau", "M", "it belongs to mirostat"),
    ignored("mirostat_eta", "M", "it belongs to mirostat"),
    ignored(
        "num_ctx",
        "M",
        "prompts are never cut: one that exceeds the server's context is refused",
    ),
    ignored("num_keep", "M", "the context is never shifted"),
    ignored("num_batch", "M", LOADING),
    ignored("num_gpu", "M", LOADING),
    ignored("main_gpu", "M", LOADING),
    ignored("low_vram", "M", LOADING),
    ignored("f16_kv", "M", LOADING),
    ignored("vocab_only", "M", LOADING),
    ignored("use_mmap", "M", LOADING),
    ignored("use_mlock", "M", LOADING),
    ignored("num_thread", "M", LOADING),
    ignored("numa", "M", LOADING),
    ignored("logits_all", "M", "logprobs have the probabilities"),
    ignored("embedding_only", "M", LOADING),
    ignored("rope_frequency_base", "M", LOADING),
    ignored("rope_frequency_scale", "M", LOADING),
];

pub(super) const EMBED: &[Field] = &[
    followed("model", "M"),
    followed("input", "M"),
    noted("truncate", "M", "false refuses texts that are too long"),
    noted("dimensions", "M", "leading components, of length 1 again"),
    noted("keep_alive", "M", KEEP_ALIVE),
    ignored("options", "M", "vectors have no options of sampling"),
];

pub(super) const EMBEDDINGS: &[Field] = &[
    followed("model", "M"),
    followed("prompt", "M"),
    noted("keep_alive", "M", KEEP_ALIVE),
    ignored("options", "M", "vectors have no options of sampling"),
];

pub(super) const SHOW: &[Field] = &[
    followed("model", "M"),
    noted("name", "M", "alias of model"),
    ignored("verbose", "M", "the vocabulary is not shown"),
    refused(
        "system",
        "M",
        &["\"\""],
        "models have no other system prompt",
    ),
    refused(
        "template",
        "M",
        &["\"\""],
        "the model's own template is used",
    ),
    ignored("options", "M", "the description is that of the model"),
];

const HUB: &str = "models come from the hub that HF_ENDPOINT names to the server";

pub(super) const PULL: &[Field] = &[
    noted(
        "model",
        "M",
        "a model that is served; others are fetched by a server with --allow-pull",
    ),
    noted("name", "M", "alias of model"),
    followed("stream", "M"),
    ignored("insecure", "M", HUB),
    ignored("username", "M", HUB),
    ignored("password", "M", HUB),
];

pub(super) const DELETE: &[Field] = &[
    noted("model", "M", "refused without --allow-pull"),
    noted("name", "M", "alias of model"),
];
