//! The native module of the package for Node. `index.js` is its only caller, and checks types; [`model`] has models,
//! [`generator`] has chats and sessions, and [`promise`] runs work on its own thread, off the event loop.
// `napi` exports nothing from the tests' build, which `clippy --all-targets` makes.
#![cfg_attr(test, allow(dead_code))]
#![allow(
    clippy::needless_pass_by_value,
    clippy::new_without_default,
    reason = "JavaScript passes values, and has no Default"
)]

mod generator;
mod model;
mod promise;

use napi_derive::napi;
use triad_bindings::Stop;

/// Ends the work that it was given to.
#[napi]
pub struct Stopper(pub(crate) Stop);

#[napi]
impl Stopper {
    /// Creates a handle for one piece of work.
    #[napi(constructor)]
    pub fn new() -> Self {
        Self(Stop::new())
    }

    /// Ends the work, also if it has not begun.
    #[napi]
    pub fn stop(&self) {
        self.0.stop();
    }
}
