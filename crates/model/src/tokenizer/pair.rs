//! The tokens around two texts that are read together: a query and a document.

use serde_json::Value;

use super::config::Config;
use crate::error::Result;

/// The classes of `transformers` whose tokenizers give no types of tokens unless `model_input_names` states them.
const WITHOUT_TYPES: [&str; 6] = [
    "Roberta",
    "XLMRoberta",
    "Camembert",
    "DistilBert",
    "MPNet",
    // Version 5, where it replaces `PreTrainedTokenizerFast`, whose files version 4 reads with types.
    "TokenizersBackend",
];
/// Maximum number of tokens around two texts.
const MAX_TOKENS: usize = 64;

/// The tokens around two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Before the first text.
    pub prefix: Vec<u32>,
    /// Between the texts.
    pub middle: Vec<u32>,
    /// After the second text.
    pub suffix: Vec<u32>,
    /// Whether the second text and the tokens after it are of type 1.
    pub has_types: bool,
}

impl Pair {
    /// Returns the tokens that llama.cpp puts around two texts.
    pub(super) fn of_gguf(prefix: &[u32], suffix: &[u32], separator: Option<u32>) -> Option<Self> {
        let middle: Vec<u32> = suffix.iter().copied().chain(separator).collect();
        (!middle.is_empty()).then(|| Self {
            prefix: prefix.to_vec(),
            middle,
            suffix: suffix.to_vec(),
            has_types: false,
        })
    }

    /// Returns the tokens that the field `post_processor` of a `tokenizer.json` puts around two texts; `None` if it puts
    /// none, or in another order.
    pub(super) fn of_post_processor(processor: &Value) -> Option<Self> {
        match processor["type"].as_str()? {
            "TemplateProcessing" => Self::of_template(processor),
            "BertProcessing" => {
                let (class, separator) = (token(&processor["cls"])?, token(&processor["sep"])?);
                Some(Self {
                    prefix: vec![class],
                    middle: vec![separator],
                    suffix: vec![separator],
                    has_types: true,
                })
            }
            "RobertaProcessing" => {
                let (class, separator) = (token(&processor["cls"])?, token(&processor["sep"])?);
                Some(Self {
                    prefix: vec![class],
                    middle: vec![separator; 2],
                    suffix: vec![separator],
                    has_types: false,
                })
            }
            "Sequence" => {
                let steps = processor["processors"].as_array()?;
                let mut pairs = steps.iter().filter_map(Self::of_post_processor);
                pairs.next().filter(|_| pairs.next().is_none())
            }
            _ => None,
        }
    }

    /// Leaves out the types of tokens if the model's tokenizer gives none, as `transformers` does.
    pub(super) fn with_inputs(mut self, config: &Config<'_>) -> Result<Self> {
        const FIELD: &str = "model_input_names";
        self.has_types &= match &config.value[FIELD] {
            Value::Null => {
                let class = config.value["tokenizer_class"].as_str().unwrap_or_default();
                !WITHOUT_TYPES.iter().any(|name| class.starts_with(name))
            }
            Value::Array(names) => names.iter().any(|name| name == "token_type_ids"),
            _ => return Err(Config::malformed(FIELD, "an array of names")),
        };
        Ok(self)
    }

    fn of_template(processor: &Value) -> Option<Self> {
        // Before the first text, between both, and after the second.
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        let (mut part, mut types) = (0, Vec::new());
        for piece in processor["pair"].as_array()? {
            let sequence = &piece["Sequence"];
            let kind = match sequence["id"].as_str() {
                Some(name) => {
                    part += 1;
                    if name != ["A", "B"].get(part - 1).copied()? {
                        return None;
                    }
                    sequence["type_id"].as_u64()?
                }
                None => {
                    let special = &piece["SpecialToken"];
                    let ids = &processor["special_tokens"][special["id"].as_str()?]["ids"];
                    for id in ids.as_array()? {
                        parts[part].push(u32::try_from(id.as_u64()?).ok()?);
                    }
                    special["type_id"].as_u64()?
                }
            };
            types.push((part, kind));
            if parts.iter().map(Vec::len).sum::<usize>() > MAX_TOKENS {
                return None;
            }
        }
        let [prefix, middle, suffix] = parts;
        let has_types = types.iter().any(|(_, kind)| *kind != 0);
        let expected = |(part, kind): &(usize, u64)| *kind == u64::from(has_types && *part == 2);
        (part == 2 && types.iter().all(expected)).then_some(Self {
            prefix,
            middle,
            suffix,
            has_types,
        })
    }

    /// Returns the number of tokens around the texts.
    pub fn len(&self) -> usize {
        self.prefix.len() + self.middle.len() + self.suffix.len()
    }

    /// Returns whether there are no tokens around the texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all tokens of two texts, and the place from which on tokens are of type 1.
    pub fn join(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, Option<usize>) {
        let mut tokens = Vec::with_capacity(self.len() + first.len() + second.len());
        tokens.extend(&self.prefix);
        tokens.extend(first);
        tokens.extend(&self.middle);
        let place = self.has_types.then_some(tokens.len());
        tokens.extend(second);
        tokens.extend(&self.suffix);
        (tokens, place)
    }
}

/// Returns the id of a token that is given as `[text, id]`.
fn token(value: &Value) -> Option<u32> {
    u32::try_from(value[1].as_u64()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_processors_of_bert_and_roberta_are_read() {
        let (class, separator) = (json!(["[CLS]", 2]), json!(["[SEP]", 3]));
        let of = |kind: &str| {
            let processor = json!({"type": kind, "cls": class, "sep": separator});
            Pair::of_post_processor(&processor)
                .unwrap()
                .join(&[7], &[8, 9])
        };
        assert_eq!(of("BertProcessing"), (vec![2, 7, 3, 8, 9, 3], Some(3)));
        assert_eq!(of("RobertaProcessing"), (vec![2, 7, 3, 3, 8, 9, 3], None));
    }

    #[test]
    fn types_of_tokens_are_given_as_the_configuration_or_the_class_states() {
        let processor = json!({"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]});
        let has_types = |config: Value| {
            let pair = Pair::of_post_processor(&processor).unwrap();
            let pair = pair.with_inputs(&Config { value: &config });
            pair.map(|pair| pair.has_types)
        };
        let names = |names: &[&str], class: &str| {
            has_types(json!({"model_input_names": names, "tokenizer_class": class})).unwrap()
        };
        assert!(has_types(Value::Null).unwrap());
        assert!(names(&["input_ids", "token_type_ids"], "RobertaTokenizer"));
        assert!(!names(&["input_ids", "attention_mask"], "BertTokenizer"));
        let of_class = |class: &str| has_types(json!({"tokenizer_class": class})).unwrap();
        assert!(of_class("BertTokenizerFast") && of_class("PreTrainedTokenizerFast"));
        assert!(!of_class("DistilBertTokenizer") && !of_class("XLMRobertaTokenizerFast"));
        assert!(!of_class("TokenizersBackend"));
        let error = has_types(json!({"model_input_names": 5})).unwrap_err();
        assert!(error.to_string().contains("model_input_names"), "{error}");
    }

    #[test]
    fn a_template_is_read_with_its_types_and_refused_in_another_order() {
        let special = |kind: u64| json!({"SpecialToken": {"id": "[SEP]", "type_id": kind}});
        let text = |id: &str, kind: u64| json!({"Sequence": {"id": id, "type_id": kind}});
        let read = |pair: Value| {
            Pair::of_post_processor(&json!({
                "type": "TemplateProcessing", "pair": pair, "special_tokens": {"[SEP]": {"ids": [3]}}
            }))
        };
        let pair = json!([
            special(0),
            text("A", 0),
            special(0),
            text("B", 1),
            special(1)
        ]);
        let joined = read(pair).unwrap().join(&[7], &[8]);
        assert_eq!(joined, (vec![3, 7, 3, 8, 3], Some(3)));
        for other in [
            json!([text("B", 0), text("A", 0)]),
            json!([text("A", 1), text("B", 0)]),
            json!([text("A", 0)]),
            json!([text("A", 0), text("B", 0), text("B", 0)]),
            json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, text("A", 0), text("B", 0)]),
        ] {
            assert_eq!(read(other.clone()), None, "{other}");
        }
    }
}
