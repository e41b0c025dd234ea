//! From messages to tokens.

use triad_engine::Model;
use triad_model::template::Message;
use triad_model::tokenizer::Special;

use crate::error::{Error, Result};

/// Bytes of text for each token of context that are looked at before the whole text is; see [`encode_text`].
const BYTES_PER_TOKEN: usize = 16;

/// The tokens of a conversation after which the model answers, at most `context`: by the chat template of the model, which
/// the user calls `name`. A model without one continues the last message as plain text.
///
/// # Errors
/// If the template fails, the model has no tokenizer, or the tokens are too many.
pub fn encode(model: &Model, name: &str, messages: &[Message], context: usize) -> Result<Vec<u32>> {
    match model.chat_template() {
        Some(template) => {
            let text = template.render(messages, true).map_err(|error| error.at(name))?;
            encode_text(model, &text, Special::Parsed, context)
        }
        None => encode_plain(model, messages, context),
    }
}

/// The tokens of the last message as plain text, at most `context`.
///
/// # Errors
/// As [`encode_text`].
pub fn encode_plain(model: &Model, messages: &[Message], context: usize) -> Result<Vec<u32>> {
    let last = messages.last().map_or("", |message| message.content.as_str());
    encode_text(model, last, Special::AsText, context)
}

/// The tokens of `text`, which are at most `context`.
///
/// A text that is far too long is refused after reading its beginning, not after minutes.
///
/// # Errors
/// If the model has no tokenizer, or the tokens are too many.
pub fn encode_text(model: &Model, text: &str, special: Special, context: usize) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let start = text.floor_char_boundary(context.saturating_mul(BYTES_PER_TOKEN));
    if start < text.len() {
        // Where the text is cut, a few tokens may be others than in the whole.
        let least = tokenizer.encode(&text[..start], special)?.len().saturating_sub(8);
        if least > context {
            return Err(Error::PromptTooLong { tokens: least, more: true, context });
        }
    }
    let tokens = tokenizer.encode(text, special)?;
    if tokens.len() > context {
        return Err(Error::PromptTooLong { tokens: tokens.len(), more: false, context });
    }
    Ok(tokens)
}
