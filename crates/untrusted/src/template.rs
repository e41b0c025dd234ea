//! Compiles arbitrary text as a chat template, and renders it for a short conversation.

use triad_model::template::{ChatTemplate, Message};

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(template) = ChatTemplate::new(source, Some("<s>"), Some("</s>")) else {
        return;
    };
    let messages = [
        ("system", "Be brief."),
        ("user", "Hi {{ name }}"),
        ("assistant", ""),
        ("user", "ü"),
    ];
    let messages = messages.map(|(role, content)| Message::new(role, content));
    for add_generation_prompt in [false, true] {
        let _ = template.render(&messages, add_generation_prompt);
    }
}
