//! Tests of engines on one CPU. Those of several processors are in the crate `triad-hetero`.

mod adapters;
mod ends;
mod mtp;
mod operators;
mod prefixes;
mod probed;
mod prompts;
mod save;
mod sequences;
mod states;

use std::sync::Arc;

use crate::testing::models::prompt;
use crate::{Cancel, Engine, EngineOptions, Model, Session, SessionOptions};

const CHUNK: usize = 8;

/// Returns a session of its own engine.
fn session(model: &Arc<Model>, chunk: usize) -> Session {
    Session::new(model, &session_options(chunk)).unwrap()
}

fn session_options(chunk: usize) -> SessionOptions {
    SessionOptions {
        context: 64,
        chunk,
        ..SessionOptions::default()
    }
}

/// Returns an engine with sessions of some chunks.
fn engine(model: &Arc<Model>) -> Engine {
    engine_of(model, &session_options(CHUNK))
}

fn engine_of(model: &Arc<Model>, session: &SessionOptions) -> Engine {
    let options = EngineOptions {
        session: session.clone(),
        ..EngineOptions::default()
    };
    Engine::new(model, &options).unwrap()
}

fn all_logits(mut session: Session, tokens: &[u32]) -> Vec<f32> {
    session.prefill_all_logits(tokens, &Cancel::new()).unwrap()
}
