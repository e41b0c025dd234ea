//! Triad for Kotlin and Swift, by `uniffi`: [`model`] has models, [`generator`] chats and sessions, [`generation`]
//! their answers, [`options`] plain data, and [`error`] errors. Calls wait for their result, so that a program chooses
//! the thread: a coroutine's dispatcher, or a task.
#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments of another language come as values"
)]

mod error;
mod generation;
mod generator;
mod model;
mod options;

uniffi::setup_scaffolding!("triad");
