//! Fields that several kinds of requests have.

use super::{Field, followed, ignored, noted, refused, with};

const SPEED: &str = "it changes times alone";
const ACCOUNT: &str = "it is for the accounts of a service";
const SAMPLERS: &str =
    "this server chooses tokens by temperature, top_k, top_p, min_p and penalties";

/// The length and the number of answers.
pub(super) const LIMITS: &[Field] = &[
    noted(
        "max_tokens",
        "OVL",
        "-1 is no limit, as in llama.cpp's server",
    ),
    noted("n_predict", "L", "as max_tokens; -1 is no limit"),
    followed("n", "OVL"),
    refused("n_cmpl", "L", &["1"], "expected n"),
];

/// The choice of tokens, and streams.
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
        "as repetition_penalty: of all tokens of prompt and answer",
    ),
    followed("logit_bias", "OVL"),
    followed("seed", "OVL"),
    followed("stop", "OVL"),
    followed("ignore_eos", "VL"),
    noted("lora", "L", "by name"),
    followed("stream", "OAVL"),
];

/// Streams.
pub(super) const STREAMS: &[Field] = &[with(
    "stream_options",
    "OV",
    &[
        followed("include_usage", "OV"),
        ignored("include_obfuscation", "O", "streams here have no padding"),
        refused(
            "continuous_usage_stats",
            "V",
            &["false"],
            "the last part has the usage",
        ),
    ],
)];

/// Forms of answers.
pub(super) const FORMS: &[Field] = &[
    with(
        "response_format",
        "OVL",
        &[
            followed("type", "OVL"),
            noted("schema", "L", "of json_object and json_schema"),
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
                "the spaces between the parts of JSON are fixed",
            ),
            refused(
                "disable_any_whitespace",
                "V",
                &["false"],
                "the spaces between the parts of JSON are fixed",
            ),
            ignored("disable_fallback", "V", "there is one library for forms"),
            ignored(
                "disable_additional_properties",
                "V",
                "objects have no other properties unless the schema allows them",
            ),
        ],
    ),
    noted("json_schema", "L", "a schema, as response_format has it"),
    noted("guided_json", "V", "as structured_outputs.json"),
    noted("guided_regex", "V", "as structured_outputs.regex"),
    noted("guided_choice", "V", "as structured_outputs.choice"),
    noted("guided_grammar", "V", "as structured_outputs.grammar"),
    ignored(
        "guided_decoding_backend",
        "V",
        "there is one library for forms",
    ),
    refused(
        "guided_whitespace_pattern",
        "V",
        &[],
        "the spaces between the parts of JSON are fixed",
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
        "GBNF is not read: expected structured_outputs.grammar, in llguidance's variant of Lark",
    ),
    refused("grammar_lazy", "L", &["false"], "expected tools"),
    refused("grammar_triggers", "L", &["[]"], "expected tools"),
    ignored("preserved_tokens", "L", "it is of grammar_triggers"),
];

/// A schema with what belongs to it.
pub(super) const NAMED_SCHEMA: &[Field] = &[
    ignored("name", "OVL", "nothing in the answer has it"),
    ignored("description", "OVL", "the prompt does not show the schema"),
    followed("schema", "OVL"),
    ignored("strict", "OVL", "answers always keep to the schema"),
];

/// What OpenAI's service has for accounts and its own speed.
pub(super) const TEXTS: &[Field] = &[
    ignored("user", "OV", ACCOUNT),
    ignored("safety_identifier", "O", ACCOUNT),
    ignored("prompt_cache_key", "O", SPEED),
    ignored("prompt_cache_retention", "O", SPEED),
    ignored("service_tier", "O", ACCOUNT),
];

/// What vLLM's server has beyond OpenAI's API.
pub(super) const VLLM: &[Field] = &[
    refused("use_beam_search", "V", &["false"], SAMPLERS),
    refused("length_penalty", "V", &["1"], SAMPLERS),
    refused("stop_token_ids", "V", &["[]"], "expected stop"),
    refused(
        "include_stop_str_in_output",
        "V",
        &["false"],
        "a stop string is not part of the answer",
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
        "control tokens have no text here",
    ),
    ignored(
        "spaces_between_special_tokens",
        "V",
        "control tokens have no text here",
    ),
    refused(
        "truncate_prompt_tokens",
        "V",
        &["-1"],
        "prompts are read whole",
    ),
    refused("truncation_side", "V", &[], "prompts are read whole"),
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
        "/tokenize has the ids",
    ),
    refused("return_token_ids", "V", &["false"], "/tokenize has the ids"),
    refused(
        "cache_salt",
        "V",
        &["\"\""],
        "prompts are kept apart by the keys of clients",
    ),
    refused("kv_transfer_params", "V", &[], "keys and values stay here"),
    refused(
        "vllm_xargs",
        "V",
        &["{}"],
        "these are options of vLLM's plugins",
    ),
    ignored("priority", "V", SPEED),
    ignored("request_id", "V", "answers have names of this server"),
    ignored("mm_processor_kwargs", "V", "models here read texts"),
];

/// What llama.cpp's server has beyond OpenAI's API.
pub(super) const LLAMA: &[Field] = &[
    ignored("cache_prompt", "L", SPEED),
    ignored("id_slot", "L", SPEED),
    ignored("n_keep", "L", "the context is never shifted"),
    ignored("n_discard", "L", "the context is never shifted"),
    refused("min_keep", "L", &["0", "1"], SAMPLERS),
    refused("n_indent", "L", &["0"], SAMPLERS),
    refused("t_max_predict_ms", "L", &["0", "-1"], "expected max_tokens"),
    refused(
        "t_max_prompt_ms",
        "L",
        &["0", "-1"],
        "expected that the client gives up",
    ),
    refused("repeat_last_n", "L", &["-1"], "penalties are of all tokens"),
    refused("penalize_nl", "L", &["true"], "penalties are of all tokens"),
    refused("typical_p", "L", &["1"], SAMPLERS),
    refused("tfs_z", "L", &["1"], SAMPLERS),
    refused("top_n_sigma", "L", &["-1", "0"], SAMPLERS),
    refused("xtc_probability", "L", &["0"], SAMPLERS),
    ignored("xtc_threshold", "L", "it is of xtc_probability"),
    refused("dynatemp_range", "L", &["0"], SAMPLERS),
    ignored("dynatemp_exponent", "L", "it is of dynatemp_range"),
    refused("dry_multiplier", "L", &["0"], SAMPLERS),
    ignored("dry_base", "L", "it is of dry_multiplier"),
    ignored("dry_allowed_length", "L", "it is of dry_multiplier"),
    ignored("dry_penalty_last_n", "L", "it is of dry_multiplier"),
    ignored("dry_sequence_breakers", "L", "it is of dry_multiplier"),
    refused("mirostat", "L", &["0"], SAMPLERS),
    ignored("mirostat_tau", "L", "it is of mirostat"),
    ignored("mirostat_eta", "L", "it is of mirostat"),
    refused("adaptive_target", "L", &["-1"], SAMPLERS),
    ignored("adaptive_decay", "L", "it is of adaptive_target"),
    refused(
        "samplers",
        "L",
        &[],
        "their order is fixed: penalties, temperature, top_k, top_p, min_p",
    ),
    ignored("backend_sampling", "L", SPEED),
    refused("n_probs", "L", &["0"], "expected logprobs"),
    refused(
        "post_sampling_probs",
        "L",
        &["false"],
        "probabilities are the model's own",
    ),
    refused("return_tokens", "L", &["false"], "/tokenize has the ids"),
    refused(
        "return_progress",
        "L",
        &["false"],
        "streams have answers alone",
    ),
    refused(
        "timings_per_token",
        "L",
        &["false"],
        "the last part has the times",
    ),
    refused("response_fields", "L", &["[]"], "answers have all fields"),
    refused(
        "verbose",
        "L",
        &["false"],
        "answers have the fields of OpenAI's API",
    ),
    ignored("speculative.n_max", "L", SPEED),
    ignored("speculative.n_min", "L", SPEED),
    ignored("speculative.p_min", "L", SPEED),
    ignored("speculative.type", "L", SPEED),
];
