//! Fields that several endpoints have.

use super::{Field, followed, ignored, noted, refused, with};

const SPEED: &str = "it affects only speed";
const ACCOUNT: &str = "for accounts of hosted services";
const SAMPLERS: &str =
    "this server samples only with temperature, top_k, top_p, min_p and penalties";

/// Limits of the length and number of completions.
pub(super) const LIMITS: &[Field] = &[
    noted(
        "max_tokens",
        "OVL",
        "-1 means no limit, as in llama.cpp's server",
    ),
    noted("n_predict", "L", "alias of max_tokens; -1 means no limit"),
    followed("n", "OVL"),
    refused("n_cmpl", "L", &["1"], "expected n"),
];

/// The adapters of a request.
pub(super) const LORA: Field = Field {
    note: "adapters are selected by name",
    ..with(
        "lora",
        "L",
        &[
            followed("name", "L"),
            followed("scale", "L"),
            refused("id", "L", &[], "expected name: /props lists the names"),
        ],
    )
};

/// Sampling options.
pub(super) const SAMPLING: &[Field] = &[
    followed("temperature", "OAVL"),
    followed("top_p", "OAVL"),
    followed("top_k", "AVL"),
    followed("min_p", "VL"),
    followed("frequency_penalty", "OVL"),
    followed("presence_penalty", "OVL"),
    followed("repetition_penalty", "V"),
    noted(
        "repeat_penalty",
        "L",
        "alias of repetition_penalty; it covers all tokens of the prompt and the completion",
    ),
    followed("logit_bias", "OVL"),
    followed("stop", "OVL"),
    followed("ignore_eos", "VL"),
    LORA,
    followed("stream", "OAVL"),
];

/// The seed in the APIs that take every number for one.
pub(super) const SEED: &[Field] = &[followed("seed", "OVL")];

/// Options of streams.
pub(super) const STREAMS: &[Field] = &[with(
    "stream_options",
    "OV",
    &[
        followed("include_usage", "OV"),
        ignored("include_obfuscation", "O", "streams are never padded"),
        noted(
            "continuous_usage_stats",
            "V",
            "each chunk has the usage of its completion so far; no effect without include_usage",
        ),
    ],
)];

/// Structured output.
pub(super) const FORMS: &[Field] = &[
    with(
        "response_format",
        "OVL",
        &[
            followed("type", "OVL"),
            noted("schema", "L", "for json_object and json_schema"),
            noted("value", "T", "alias of schema, as in the server TGI"),
            with("json_schema", "OVL", NAMED_SCHEMA),
        ],
    ),
    with(
        "structured_outputs",
        "V",
        &[
            followed("json", "V"),
            followed("json_object", "V"),
            followed("regex", "V"),
            followed("choice", "V"),
            noted("grammar", "V", "in llguidance's variant of Lark"),
            refused("structural_tag", "V", &[], "expected tools, or a grammar"),
            refused(
                "whitespace_pattern",
                "V",
                &[],
                "the whitespace between the parts of JSON is fixed",
            ),
            refused(
                "disable_any_whitespace",
                "V",
                &["false"],
                "the whitespace between the parts of JSON is fixed",
            ),
            ignored("disable_fallback", "V", "there is only one such library"),
            ignored(
                "disable_additional_properties",
                "V",
                "objects have no other properties unless the schema allows them",
            ),
        ],
    ),
    noted("json_schema", "L", "a schema, as in response_format"),
    noted("guided_json", "V", "alias of structured_outputs.json"),
    noted("guided_regex", "V", "alias of structured_outputs.regex"),
    noted("guided_choice", "V", "alias of structured_outputs.choice"),
    noted("guided_grammar", "V", "alias of structured_outputs.grammar"),
    ignored(
        "guided_decoding_backend",
        "V",
        "there is only one such library",
    ),
    refused(
        "guided_whitespace_pattern",
        "V",
        &[],
        "the whitespace between the parts of JSON is fixed",
    ),
    refused(
        "structural_tag",
        "V",
        &[],
        "expected tools, or structured_outputs.grammar",
    ),
    refused(
        "grammar",
        "L",
        &["\"\""],
        "GBNF is not supported: expected structured_outputs.grammar, in llguidance's variant of Lark",
    ),
    refused("grammar_lazy", "L", &["false"], "expected tools"),
    refused("grammar_triggers", "L", &["[]"], "expected tools"),
    ignored("preserved_tokens", "L", "it belongs to grammar_triggers"),
];

/// A JSON schema with its name.
pub(super) const NAMED_SCHEMA: &[Field] = &[
    ignored("name", "OVL", "it does not appear in the response"),
    ignored("description", "OVL", "the prompt does not show the schema"),
    followed("schema", "OVL"),
    ignored("strict", "OVL", "the output always conforms to the schema"),
];

/// Fields of OpenAI's service for accounts and for its own performance.
pub(super) const TEXTS: &[Field] = &[
    ignored("user", "OV", ACCOUNT),
    ignored("safety_identifier", "O", ACCOUNT),
    ignored("prompt_cache_key", "O", SPEED),
    ignored("prompt_cache_retention", "O", SPEED),
    ignored("prompt_cache_options", "O", SPEED),
    ignored("service_tier", "O", ACCOUNT),
];

/// Fields that vLLM's server has in addition to OpenAI's API.
pub(super) const VLLM: &[Field] = &[
    refused("use_beam_search", "V", &["false"], SAMPLERS),
    refused("length_penalty", "V", &["1"], SAMPLERS),
    refused("stop_token_ids", "V", &["[]"], "expected stop"),
    refused(
        "include_stop_str_in_output",
        "V",
        &["false"],
        "a stop string is not part of the completion",
    ),
    refused(
        "min_tokens",
        "V",
        &["0"],
        "expected ignore_eos with max_tokens",
    ),
    refused(
        "skip_special_tokens",
        "V",
        &["true"],
        "control tokens have no text in this server",
    ),
    ignored(
        "spaces_between_special_tokens",
        "V",
        "control tokens have no text in this server",
    ),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "prompts are never truncated",
    ),
    refused("truncation_side", "V", &[], "prompts are never truncated"),
    refused(
        "prompt_logprobs",
        "V",
        &["0", "false"],
        "expected echo with logprobs in /v1/completions",
    ),
    refused(
        "allowed_token_ids",
        "V",
        &["[]"],
        "expected structured_outputs",
    ),
    refused("bad_words", "V", &["[]"], "expected logit_bias"),
    refused("logits_processors", "V", &["[]"], SAMPLERS),
    refused(
        "return_tokens_as_token_ids",
        "V",
        &["false"],
        "/tokenize returns ids",
    ),
    refused("return_token_ids", "V", &["false"], "/tokenize returns ids"),
    refused(
        "cache_salt",
        "V",
        &["\"\""],
        "cached prompts are separated by API key",
    ),
    refused("kv_transfer_params", "V", &[], "the KV cache is not shared"),
    refused(
        "vllm_xargs",
        "V",
        &["{}"],
        "these are options of vLLM's plugins",
    ),
    ignored("priority", "V", SPEED),
    ignored("request_id", "V", "the server generates response ids"),
    refused(
        "mm_processor_kwargs",
        "V",
        &["{}"],
        "the model's own processor, and --max-image-patches of the server",
    ),
];

/// Fields of llama.cpp's own endpoints that OpenAI's do not follow.
pub(super) const LLAMA_OWN: &[Field] = &[
    refused("n_indent", "L", &["0"], "expected /completion"),
    refused("t_max_predict_ms", "L", &["0", "-1"], "expected max_tokens"),
    refused(
        "t_max_prompt_ms",
        "L",
        &["0", "-1"],
        "the client has to close the connection instead",
    ),
    refused(
        "samplers",
        "L",
        &[],
        "their order is fixed: penalties, temperature, top_k, top_p, min_p",
    ),
    refused("response_fields", "L", &["[]"], "responses have all fields"),
    refused("n_probs", "L", &["0"], "expected logprobs"),
];

/// Fields that llama.cpp's server has in addition to OpenAI's API.
pub(super) const LLAMA_COMMON: &[Field] = &[
    ignored("cache_prompt", "L", SPEED),
    ignored("id_slot", "L", SPEED),
    ignored("n_keep", "L", "the context is never shifted"),
    ignored("n_discard", "L", "the context is never shifted"),
    refused("min_keep", "L", &["0", "1"], SAMPLERS),
    refused("repeat_last_n", "L", &["-1"], "penalties cover all tokens"),
    refused("penalize_nl", "L", &["true"], "penalties cover all tokens"),
    refused("typical_p", "L", &["1"], SAMPLERS),
    refused("tfs_z", "L", &["1"], SAMPLERS),
    refused("top_n_sigma", "L", &["-1", "0"], SAMPLERS),
    refused("xtc_probability", "L", &["0"], SAMPLERS),
    ignored("xtc_threshold", "L", "it belongs to xtc_probability"),
    refused("dynatemp_range", "L", &["0"], SAMPLERS),
    ignored("dynatemp_exponent", "L", "it belongs to dynatemp_range"),
    refused("dry_multiplier", "L", &["0"], SAMPLERS),
    ignored("dry_base", "L", "it belongs to dry_multiplier"),
    ignored("dry_allowed_length", "L", "it belongs to dry_multiplier"),
    ignored("dry_penalty_last_n", "L", "it belongs to dry_multiplier"),
    ignored("dry_sequence_breakers", "L", "it belongs to dry_multiplier"),
    refused("mirostat", "L", &["0"], SAMPLERS),
    ignored("mirostat_tau", "L", "it belongs to mirostat"),
    ignored("mirostat_eta", "L", "it belongs to mirostat"),
    refused("adaptive_target", "L", &["-1"], SAMPLERS),
    ignored("adaptive_decay", "L", "it belongs to adaptive_target"),
    ignored("backend_sampling", "L", SPEED),
    refused(
        "post_sampling_probs",
        "L",
        &["false"],
        "probabilities are those before sampling options",
    ),
    refused("return_tokens", "L", &["false"], "/tokenize returns ids"),
    refused(
        "return_progress",
        "L",
        &["false"],
        "streams contain only completions",
    ),
    refused(
        "timings_per_token",
        "L",
        &["false"],
        "the last chunk has the timings",
    ),
    refused(
        "verbose",
        "L",
        &["false"],
        "responses have the fields of OpenAI's API",
    ),
    ignored("speculative.n_max", "L", SPEED),
    ignored("speculative.n_min", "L", SPEED),
    ignored("speculative.p_min", "L", SPEED),
    ignored("speculative.type", "L", SPEED),
];
