//! Work on its own thread, with texts for JavaScript while it runs and a promise of its result.

use std::sync::Arc;
use std::thread;

use napi::bindgen_prelude::{Object, ToNapiValue, Unknown};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Error, JsError, Status};
use triad_bindings::{Code, Failure, Stop, guarded};

/// A function of JavaScript that is called with texts, and with `null` after the last one.
pub type OnText =
    ThreadsafeFunction<Option<String>, Unknown<'static>, Option<String>, Status, false>;

/// Sends texts from the thread of the work to JavaScript.
#[derive(Clone)]
pub struct Texts {
    on_text: Arc<OnText>,
    stop: Stop,
}

impl Texts {
    /// Sends a text. If the environment has ended, the work is stopped.
    pub fn send(&self, text: String) {
        self.call(Some(text));
    }

    fn call(&self, text: Option<String>) {
        let mode = ThreadsafeFunctionCallMode::NonBlocking;
        if self.on_text.call(text, mode) != Status::Ok {
            self.stop.stop();
        }
    }
}

/// Runs `work` on a new thread and returns the promise of its result. `on_text` is called with the texts that `work`
/// sends, and at the end with `null`, which may come after the result.
pub fn run<'env, T: ToNapiValue + Send + 'static>(
    env: &'env Env,
    on_text: OnText,
    stop: Stop,
    work: impl FnOnce(&Stop, &Texts) -> Result<T, Failure> + Send + 'static,
) -> Result<Object<'env>> {
    let internal = |error: Error| Error::new(Code::Internal.name(), error.reason);
    let (deferred, promise) = env.create_deferred().map_err(internal)?;
    let texts = Texts {
        on_text: Arc::new(on_text),
        stop,
    };
    let on_thread = move || {
        let result = guarded(|| work(&texts.stop, &texts));
        texts.call(None);
        deferred.resolve(move |env| result.map_err(|failure| rejected(&failure, env)));
    };
    thread::Builder::new()
        .name("triad-node".into())
        .spawn(on_thread)
        .map_err(|source| Error::new(Code::Io.name(), format!("can't start a thread: {source}")))?;
    Ok(promise)
}

/// Result of functions that throw errors whose property `code` is the name of their kind.
pub type Result<T, E = Error<&'static str>> = std::result::Result<T, E>;

/// Converts the result of a function that returns at once.
pub fn thrown<T>(result: Result<T, impl Into<Failure>>) -> Result<T> {
    result.map_err(|failure| error(&failure.into()))
}

fn error(failure: &Failure) -> Error<&'static str> {
    Error::new(failure.code().name(), failure.to_string())
}

/// Returns the error that a promise is rejected with, with the same property.
fn rejected(failure: &Failure, env: Env) -> Error {
    JsError::from(error(failure)).into_unknown(env).into()
}
