//! Encodes messages into tokens.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use triad_engine::{Cancel, Model};
use triad_model::template::{ChatTemplate, Message, RenderOptions, Stop};
use triad_model::tokenizer::{EncodeOptions, Encoded};

use crate::error::{Error, Result};
use crate::letters;
use crate::pictures::{self, PicturePrompt, Pictures};
use crate::plain_messages::{content, plain_messages, with_objects};
use crate::tool_calls::{self, Tool};

/// Returns the tokens of a conversation up to the model's answer, at most `context`, by the chat template of the model
/// `name`. For a model without a template, returns the last message as plain text.
///
/// # Errors
/// If the template fails, the model has no tokenizer, or the tokens are too many.
pub fn encode(model: &Model, name: &str, messages: &[Message], context: usize) -> Result<Vec<u32>> {
    let messages = messages
        .iter()
        .map(|Message { role, content }| json!({ "role": role, "content": content }));
    let messages: Vec<_> = messages.collect();
    let conversation = Conversation {
        messages: &messages,
        ..Conversation::default()
    };
    encode_conversation(model, name, &conversation, (context, &Cancel::new()))
}

/// A conversation in OpenAI's format, from which a prompt is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// The messages. Contents are texts, or lists of parts of type `text`, or `image` if there are `pictures`.
    pub messages: &'a [Value],
    /// Functions that the model may call. If the template does not list functions,
    /// [instructions](tool_calls::instructions) are added to the system message, or to the first user message if the
    /// template has no system message. Calls and their results are then text. The arguments of earlier calls may be the
    /// text of an object, as in OpenAI's API.
    pub tools: &'a [Tool],
    /// Texts that the answer should be about, for templates that use them.
    pub documents: &'a [Value],
    /// Further variables of the template.
    pub variables: Option<&'a Map<String, Value>>,
    /// Where the text ends.
    pub end: PromptEnd,
    /// Whether names of control tokens in users' texts stay plain text: in contents of messages that are not the
    /// model's, in tools, calls, results and documents. Otherwise they become these tokens.
    pub keeps_letters: bool,
}

/// Where the text of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// Where an answer begins.
    #[default]
    Answer,
    /// After the last message.
    Messages,
    /// Within the last message, which the answer continues.
    LastMessage,
}

/// Returns the tokens of a conversation, at most `context`, by the chat template of the model `name`. For a model
/// without a template, returns the last message as plain text.
///
/// # Errors
/// If the template fails, the model has no tokenizer, or the tokens are too many; if a message is not an object with a
/// role, or `cancel` is set meanwhile.
pub fn encode_conversation(
    model: &Model,
    name: &str,
    conversation: &Conversation<'_>,
    within: (usize, &Cancel),
) -> Result<Vec<u32>> {
    let prompt = encode_rendered(model, name, conversation, (None, within))?;
    Ok(prompt.tokens)
}

/// Returns the tokens of a conversation as [`encode_conversation`] does, with places for the rows of its `pictures`.
///
/// # Errors
/// As [`encode_conversation`]; if a text names the token that stands for pictures.
pub fn encode_pictures(
    model: &Model,
    name: &str,
    conversation: &Conversation<'_>,
    (pictures, within): (Pictures<'_>, (usize, &Cancel)),
) -> Result<PicturePrompt> {
    encode_rendered(model, name, conversation, (Some(pictures), within))
}

fn encode_rendered(
    model: &Model,
    name: &str,
    conversation: &Conversation<'_>,
    (pictures, (context, cancel)): (Option<Pictures<'_>>, (usize, &Cancel)),
) -> Result<PicturePrompt> {
    let Some(template) = model.chat_template() else {
        if let Some(Pictures { pieces, .. }) = pictures {
            return Err(Error::OnlyText(pieces.len()));
        }
        let last = conversation
            .messages
            .last()
            .map_or_else(String::new, content);
        let tokens = encode_text(model, &last, EncodeOptions::TEXT, (context, cancel))?;
        return Ok(tokens.into());
    };
    encode_by(
        model,
        (template, name),
        conversation,
        (pictures, (context, cancel)),
    )
}

/// Returns the tokens of a conversation by a `template` of the model `name`.
///
/// # Errors
/// As [`encode_conversation`].
pub(crate) fn encode_by(
    model: &Model,
    (template, name): (&ChatTemplate, &str),
    conversation: &Conversation<'_>,
    (pictures, (context, cancel)): (Option<Pictures<'_>>, (usize, &Cancel)),
) -> Result<PicturePrompt> {
    // A template would write their tokens, and nothing would stand in their places.
    let shown = pictures::count(conversation.messages);
    if pictures.is_none() && shown > 0 {
        return Err(Error::OnlyText(shown));
    }
    let render = |conversation: &Conversation<'_>| {
        let Some(pictures) = pictures else {
            return render_conversation(template, name, conversation, cancel);
        };
        let mut messages = conversation.messages.to_vec();
        let template = template_for(template, conversation.tools);
        pictures::mark(pictures.processor, template, &mut messages)?;
        let conversation = Conversation {
            messages: &messages,
            ..*conversation
        };
        render_conversation(template, name, &conversation, cancel)
    };
    let encode = |text: &str, encode: &dyn Fn(&str) -> Result<Vec<u32>>| match pictures {
        Some(pictures) => pictures.encode(model.tokenizer()?, text, context, encode),
        None => Ok(encode(text)?.into()),
    };
    if !conversation.keeps_letters {
        let text = render(conversation)?;
        return encode(&text, &|text| {
            encode_text(model, text, EncodeOptions::TEMPLATE, (context, cancel))
        });
    }
    let values = [conversation.messages, conversation.documents];
    let marks = letters::marks(model.tokenizer()?, values, conversation.tools)?;
    let picture = pictures.map(|pictures| pictures.processor.placeholder());
    let mark = |message| letters::marked_message(&marks, message, picture);
    let messages: Vec<_> = conversation.messages.iter().map(mark).collect();
    let mark = |tool| letters::marked_tool(&marks, tool);
    let tools: Vec<_> = conversation.tools.iter().map(mark).collect();
    let mark = |document| letters::marked(&marks, document);
    let documents: Vec<_> = conversation.documents.iter().map(mark).collect();
    let text = render(&Conversation {
        messages: &messages,
        tools: &tools,
        documents: &documents,
        ..*conversation
    })?;
    encode(&text, &|text| {
        let encoded = marks.encode_within(text, context, &|| cancel.is_cancelled())?;
        whole(encoded, context)
    })
}

/// Returns the tokens of `messages` in OpenAI's format as [`encode_conversation`] does, with `tools` that the model may
/// call.
///
/// # Errors
/// As [`encode_conversation`].
pub fn encode_with_tools(
    model: &Model,
    name: &str,
    messages: &[Value],
    tools: &[Tool],
    within: (usize, &Cancel),
) -> Result<Vec<u32>> {
    encode_conversation(
        model,
        name,
        &Conversation {
            messages,
            tools,
            ..Conversation::default()
        },
        within,
    )
}

/// Returns the text of a conversation with `tools` that the model may call, by the `template` of the model `name`. With
/// `add_generation_prompt` it ends where the model's answer begins.
///
/// # Errors
/// As [`render_conversation`].
pub fn render_with_tools(
    template: &ChatTemplate,
    name: &str,
    (messages, tools): (&[Value], &[Tool]),
    (add_generation_prompt, cancel): (bool, &Cancel),
) -> Result<String> {
    let end = if add_generation_prompt {
        PromptEnd::Answer
    } else {
        PromptEnd::Messages
    };
    render_conversation(
        template,
        name,
        &Conversation {
            messages,
            tools,
            end,
            ..Conversation::default()
        },
        cancel,
    )
}

/// Returns the template of a model for a conversation with `tools`.
pub fn template_for<'a>(template: &'a ChatTemplate, tools: &[Tool]) -> &'a ChatTemplate {
    match tools {
        [] => template,
        _ => template.for_tools(),
    }
}

/// Returns the text of a conversation, by the `template` of the model `name`.
///
/// # Errors
/// If the template fails, a message is not an object with a role, or `cancel` is set meanwhile.
pub fn render_conversation(
    template: &ChatTemplate,
    name: &str,
    conversation: &Conversation<'_>,
    cancel: &Cancel,
) -> Result<String> {
    let Conversation {
        messages,
        tools,
        documents,
        variables,
        end,
        ..
    } = *conversation;
    let template = template_for(template, tools);
    let lists_tools = tool_calls::template_lists_tools(template.source());
    let cancel = cancel.clone();
    let stop: Stop = Arc::new(move || cancel.is_cancelled());
    let messages = if lists_tools {
        messages.iter().map(with_objects).collect()
    } else {
        let reads = || template.reads_system(Some(Arc::clone(&stop)));
        let reads_system = tools.is_empty() || reads().map_err(|error| error.at(name))?;
        plain_messages(messages, tools, reads_system)?
    };
    let messages: Vec<_> = messages
        .into_iter()
        .map(|message| with_reasoning(template, message))
        .collect();
    let tools: Vec<_> = if lists_tools {
        tools.iter().map(Tool::to_json).collect()
    } else {
        Vec::new()
    };
    let options = RenderOptions {
        tools: &tools,
        documents,
        add_generation_prompt: end == PromptEnd::Answer,
        continue_final_message: end == PromptEnd::LastMessage,
        variables,
    };
    Ok(template
        .render_conversation(&messages, &options, Some(stop))
        .map_err(|error| error.at(name))?)
}

/// Returns the message with its reasoning in the field that the template reads.
fn with_reasoning(template: &ChatTemplate, mut message: Value) -> Value {
    let reasoning = message["reasoning_content"].as_str().map(str::to_owned);
    let Some(reasoning) = reasoning.filter(|_| !template.mentions("reasoning_content")) else {
        return message;
    };
    let has_calls = message.get("tool_calls").is_some();
    let text = content(&message);
    if template.mentions("thinking") {
        // gpt-oss: a call has either of both, and the content is reasoning as well.
        let is_both = has_calls && !text.is_empty();
        if is_both {
            message["content"] = "".into();
        }
        message["thinking"] = if is_both {
            format!("{reasoning}\n{text}").into()
        } else {
            reasoning.into()
        };
    } else if template.mentions("reasoning") {
        message["reasoning"] = reasoning.into();
    }
    message
}

/// Returns the tokens of `text`, read as plain text, at most `context`.
///
/// # Errors
/// As [`encode_text`].
pub fn encode_plain(model: &Model, text: &str, context: usize) -> Result<Vec<u32>> {
    encode_text(model, text, EncodeOptions::TEXT, (context, &Cancel::new()))
}

/// Returns the tokens of `text`, at most `context`.
///
/// A text that is far too long is refused by its length, or as soon as it has too many tokens.
///
/// # Errors
/// If the model has no tokenizer, the tokens are too many, or `cancel` is set meanwhile.
pub fn encode_text(
    model: &Model,
    text: &str,
    options: EncodeOptions,
    (context, cancel): (usize, &Cancel),
) -> Result<Vec<u32>> {
    whole(
        model
            .tokenizer()?
            .encode_within(text, options, context, &|| cancel.is_cancelled())?,
        context,
    )
}

/// Returns the tokens of a text. Fails if they are more than `context`.
fn whole(encoded: Encoded, context: usize) -> Result<Vec<u32>> {
    match encoded {
        Encoded::Whole(tokens) if tokens.len() > context => Err(Error::PromptTooLong {
            tokens: tokens.len(),
            more: false,
            context,
        }),
        Encoded::Whole(tokens) => Ok(tokens),
        Encoded::TooMany(tokens) => Err(Error::PromptTooLong {
            tokens,
            more: true,
            context,
        }),
        Encoded::Stopped => Err(triad_engine::Error::Cancelled.into()),
    }
}
