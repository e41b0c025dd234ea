//! Chats and sessions, which generate answers.

use napi::Env;
use napi::bindgen_prelude::{Object, Uint32Array};
use napi_derive::napi;
use serde_json::{Value, json};
use triad::ToolCall;
use triad_bindings::{ChatTurn, Generator, Lender, Stop, calls, finish_word, generate};

use crate::Stopper;
use crate::promise::{OnText, Result, run, thrown};

/// A conversation.
#[napi]
pub struct Chat(pub(crate) Lender<triad::Chat>);

/// A text that a model continues.
#[napi]
pub struct Session(pub(crate) Lender<triad::Session>);

/// Promises the answer to `turn` as JSON, with its pieces for `on_piece`.
fn answer<'env, G: Generator>(
    env: &'env Env,
    lender: &Lender<G>,
    turn: G::Turn,
    on_piece: OnText,
    stopper: &Stopper,
) -> Result<Object<'env>> {
    let loan = thrown(lender.lend())?;
    run(env, on_piece, stopper.0.clone(), move |stop, texts| {
        let answer = generate(loan, turn, stop, &mut |piece| texts.send(piece))?;
        let calls =
            calls(&answer).map(|(name, arguments)| json!({ "name": name, "arguments": arguments }));
        let timing = &answer.timing;
        Ok(json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "finish": finish_word(answer.finish),
            "calls": calls.collect::<Value>(),
            "timing": {
                "prefillTokens": timing.prefill_tokens,
                "reusedTokens": timing.reused_tokens,
                "prefillSeconds": timing.prefill_seconds,
                "decodeTokens": timing.decode_tokens,
                "decodeSeconds": timing.decode_seconds,
                "timeToFirstTokenSeconds": timing.time_to_first_token_seconds,
            },
        })
        .to_string())
    })
}

#[napi]
impl Chat {
    /// Promises the answer to a message of the user, or to the conversation as it is.
    #[napi]
    pub fn answer<'env>(
        &self,
        env: &'env Env,
        message: Option<String>,
        on_piece: OnText,
        stopper: &Stopper,
    ) -> Result<Object<'env>> {
        let turn = message.map_or(ChatTurn::Reply, ChatTurn::Send);
        answer(env, &self.0, turn, on_piece, stopper)
    }

    /// Adds the result of a call of the function `name`.
    #[napi]
    pub fn push_result(&self, name: String, result: String) -> Result<()> {
        let call = ToolCall::from((name.as_str(), "{}"));
        thrown(self.0.with(|chat| chat.push_result(&call, &result)))
    }

    /// Drops the conversation with its memory.
    #[napi]
    pub fn close(&self) {
        self.0.close();
    }

    /// Returns the messages so far, as JSON.
    #[napi]
    pub fn messages(&self) -> Result<String> {
        let messages = |chat: &mut triad::Chat| {
            let each = |it: triad::Message| json!({ "role": it.role, "content": it.content });
            chat.messages().into_iter().map(each).collect::<Value>()
        };
        Ok(thrown(self.0.with(messages))?.to_string())
    }
}

#[napi]
impl Session {
    /// Promises the continuation of `prompt`.
    #[napi]
    pub fn answer<'env>(
        &self,
        env: &'env Env,
        prompt: String,
        on_piece: OnText,
        stopper: &Stopper,
    ) -> Result<Object<'env>> {
        answer(env, &self.0, prompt, on_piece, stopper)
    }

    /// Drops the session with its memory.
    #[napi]
    pub fn close(&self) {
        self.0.close();
    }

    /// Returns the tokens of the session.
    #[napi(getter)]
    pub fn tokens(&self) -> Result<Uint32Array> {
        thrown(
            self.0
                .with(|session| Uint32Array::new(session.tokens().to_vec())),
        )
    }

    /// Promises that the session is written to `path`.
    #[napi]
    pub fn save<'env>(
        &self,
        env: &'env Env,
        path: String,
        on_text: OnText,
    ) -> Result<Object<'env>> {
        let mut loan = thrown(self.0.lend())?;
        run(env, on_text, Stop::new(), move |_, _| {
            Ok(loan.get().save(path)?)
        })
    }
}
