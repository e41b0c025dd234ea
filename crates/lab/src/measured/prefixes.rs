//! Measures what conversations with a common prefix share (time, pages, memory), and the cost of saving one.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use triad_engine::{Cancel, Engine};

use crate::error::Result;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Tokens of the common prefix.
    pub shared: usize,
    /// Further tokens of each prompt.
    pub own: usize,
    /// Conversations.
    pub conversations: usize,
}

/// Measurements of one conversation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Conversation {
    /// Seconds from the prompt to the logits of its last token.
    pub seconds_to_first_token: f64,
    /// Tokens of the prompt whose keys and values were reused.
    pub found: usize,
    /// Pages that it holds.
    pub pages: usize,
    /// Pages of these that other conversations hold, too.
    pub shared_pages: usize,
    /// Bytes of all keys and values of the engine after this conversation.
    pub bytes: usize,
}

/// Results.
#[derive(Clone, Debug, Serialize)]
pub struct Prefixes {
    /// Tokens of the common prefix.
    pub shared: usize,
    /// Further tokens of each prompt.
    pub own: usize,
    /// Bytes of one page in all layers.
    pub page_bytes: usize,
    /// The conversations, all kept until the end.
    pub conversations: Vec<Conversation>,
    /// Seconds of the first prompt, with an empty cache.
    pub cold_seconds: f64,
    /// Seconds to write a conversation to a file.
    pub save_seconds: f64,
    /// Seconds to read it.
    pub restore_seconds: f64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Runs `plan` on sessions of `engine`, which must have enough context and memory. The saved session is written to
/// `file`. `progress` is called with the number of completed conversations.
///
/// # Errors
/// If `cancel` is set, a session fails, or the file can't be written.
pub fn run(
    engine: &Engine,
    plan: &Plan,
    file: &Path,
    cancel: &Cancel,
    mut progress: impl FnMut(usize),
) -> Result<Prefixes> {
    let vocab = engine.model().description().vocab;
    let token = |index: usize| (index.wrapping_mul(7919) % vocab) as u32;
    let prompt = |conversation: usize| -> Vec<u32> {
        let own = (0..plan.own).map(|index| token(100_003 * (conversation + 1) + index));
        (0..plan.shared).map(token).chain(own).collect()
    };
    // An unmeasured prompt with other tokens, which allocates buffers.
    let other: Vec<u32> = (0..plan.shared + plan.own)
        .map(|index| token(index + 1))
        .collect();
    engine.session().prefill(&other, cancel, |_| {})?;
    let mut held = Vec::new();
    let mut conversations = Vec::new();
    for conversation in 0..plan.conversations {
        let prompt = prompt(conversation);
        let start = Instant::now();
        let mut session = engine.session();
        let found = session.reuse(&prompt);
        session.prefill(&prompt[found..], cancel, |_| {})?;
        let seconds_to_first_token = start.elapsed().as_secs_f64();
        session.share();
        let (pages, shared_pages) = session.pages();
        let bytes = engine.usage().kv.bytes;
        conversations.push(Conversation {
            seconds_to_first_token,
            found,
            pages,
            shared_pages,
            bytes,
        });
        held.push(session);
        progress(conversation + 1);
    }
    let start = Instant::now();
    held[0].save(file)?;
    let save_seconds = start.elapsed().as_secs_f64();
    let file_bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    held.clear();
    let start = Instant::now();
    drop(engine.restore(file)?);
    let restore_seconds = start.elapsed().as_secs_f64();
    Ok(Prefixes {
        shared: plan.shared,
        own: plan.own,
        page_bytes: engine.usage().kv.page_bytes,
        cold_seconds: conversations
            .first()
            .map_or(0.0, |first| first.seconds_to_first_token),
        conversations,
        save_seconds,
        restore_seconds,
        file_bytes,
    })
}
