//! Answers that may call functions.

use std::ffi::{c_char, c_void};

use serde_json::Value;
use triad_engine::Cancel;
use triad_frontend::chat::Conversation;
use triad_frontend::tool_calls::Tool;

use crate::answer::{Listener, TriadGenerateOptions, TriadGeneration, TriadOnText, generate};
use crate::model::TriadCancel;
use crate::pointers::{reference, text};
use crate::session::TriadSession;
use crate::status::{Failure, TriadStatus, call};

/// A callback for each function call of an answer: the name of the function, and its arguments, a JSON object. Both are
/// valid during the call. A return value other than 0 ends the answer. The rules of TriadOnText hold.
pub type TriadOnCall =
    Option<extern "C" fn(name: *const c_char, arguments: *const c_char, user: *mut c_void) -> i32>;

/// Answers a conversation by the model's chat template; the model may call functions. `messages` and `tools` are JSON
/// arrays in the form of OpenAI's chat API. An answer with calls continues the conversation as the message
/// `{"role": "assistant", "content": …, "tool_calls": [{"type": "function", "function": {"name": …, "arguments": …}}]}`,
/// and each result as `{"role": "tool", "name": …, "content": …}`. `on_text` receives the text without calls, `on_call`
/// the calls; it may only be NULL without tools. An answer with tools has no schema, regex or grammar. Otherwise the
/// same as triad_session_chat.
#[unsafe(no_mangle)]
pub extern "C" fn triad_session_chat_tools(
    session: *const TriadSession,
    messages: *const c_char,
    tools: *const c_char,
    options: *const TriadGenerateOptions,
    cancel: *const TriadCancel,
    on_text: TriadOnText,
    on_call: TriadOnCall,
    user: *mut c_void,
    generation: *mut TriadGeneration,
) -> TriadStatus {
    call(|| {
        let session = reference("session", session)?;
        let messages = array("messages", messages)?;
        if messages.is_empty() {
            return Err(Failure::argument("messages", "at least one"));
        }
        let tools = array("tools", tools)?;
        let tools = tools.iter().enumerate().map(|(index, tool)| {
            let invalid = |error| {
                Failure::new(
                    TriadStatus::InvalidArgument,
                    format!("tools[{index}]: {error}"),
                )
            };
            Tool::from_json(tool).map_err(invalid)
        });
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        if !tools.is_empty() && on_call.is_none() {
            return Err(Failure::argument(
                "on_call",
                "a function, since there are tools",
            ));
        }
        let listener = Listener {
            cancel,
            on_text,
            calls: on_call.map(|on_call| (on_call, &*tools)),
            user,
            generation,
        };
        generate(session, options, &listener, |model, context| {
            let conversation = Conversation {
                messages: &messages,
                tools: &tools,
                ..Conversation::default()
            };
            let within = (context, &Cancel::new());
            session
                .pictures
                .prompt((model, &*session.name), &conversation, Vec::new(), within)
        })
    })
}

/// Reads a JSON array.
fn array(name: &str, pointer: *const c_char) -> Result<Vec<Value>, Failure> {
    serde_json::from_str(text(name, pointer)?)
        .map_err(|error| Failure::argument(name, &format!("a JSON array ({error})")))
}
