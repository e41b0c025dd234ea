//! Models.

use napi::Env;
use napi::bindgen_prelude::{Float32Array, Object, Uint32Array};
use napi_derive::napi;
use triad::Cancel;
use triad_bindings::options::{Answering, Function, Opening, from_json};
use triad_bindings::{Failure, Lender, Stop};

use crate::Stopper;
use crate::generator::{Chat, Session};
use crate::promise::{OnText, Result, run, thrown};

/// A model that is ready to run.
#[napi]
pub struct Model(triad::Model);

/// Opens a model with options in JSON; `on_step` is called with a sentence at the start of each step.
#[napi]
pub fn open<'env>(
    env: &'env Env,
    name: String,
    options: String,
    on_step: OnText,
    stopper: &Stopper,
) -> Result<Object<'env>> {
    run(env, on_step, stopper.0.clone(), move |stop, texts| {
        let options = from_json::<Opening>(&options)?.build()?;
        let (cancel, texts) = (Cancel::new(), texts.clone());
        stop.bind(cancel.clone());
        let options = options.on_step(move |step| texts.send(step.to_owned()));
        Ok(Model(options.cancel_with(&cancel).open(&name)?))
    })
}

#[napi]
impl Model {
    /// Returns the name by which the model was opened.
    #[napi(getter)]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the maximum tokens of a prompt and its answer together.
    #[napi(getter)]
    pub fn context(&self) -> f64 {
        self.0.context() as f64
    }

    /// Begins a conversation. `tools` and `options` are JSON.
    #[napi]
    pub fn chat(
        &self,
        system: Option<String>,
        keeps_letters: bool,
        tools: String,
        options: String,
    ) -> Result<Chat> {
        let build = || {
            let options = from_json::<Answering>(&options)?.build()?;
            let functions: Vec<Function> = from_json(&tools)?;
            let tools: Vec<_> = functions
                .iter()
                .map(Function::build)
                .collect::<Result<_, _>>()?;
            let mut chat = self.0.chat().with_options(options).with_tools(tools);
            if let Some(system) = system {
                chat = chat.with_system(&system);
            }
            if keeps_letters {
                chat = chat.with_letters_kept();
            }
            Ok::<_, Failure>(Chat(Lender::new(chat)))
        };
        thrown(build())
    }

    /// Begins a text. `options` is JSON.
    #[napi]
    pub fn session(&self, options: String) -> Result<Session> {
        thrown(continued(&options, || Ok(self.0.session())))
    }

    /// Promises the session that was saved at `path`. `options` is JSON.
    #[napi]
    pub fn restore<'env>(
        &self,
        env: &'env Env,
        path: String,
        options: String,
        on_text: OnText,
    ) -> Result<Object<'env>> {
        let model = self.0.clone();
        run(env, on_text, Stop::new(), move |_, _| {
            continued(&options, || model.restore(path))
        })
    }

    /// Promises the vector of a text, of length 1.
    #[napi]
    pub fn embed<'env>(
        &self,
        env: &'env Env,
        text: String,
        on_text: OnText,
    ) -> Result<Object<'env>> {
        let model = self.0.clone();
        run(env, on_text, Stop::new(), move |_, _| {
            Ok(Float32Array::new(model.embed(&text)?))
        })
    }

    /// Returns the tokens of a text.
    #[napi]
    pub fn tokenize(&self, text: String) -> Result<Uint32Array> {
        thrown(self.0.tokenize(&text).map(Uint32Array::new))
    }

    /// Returns the text of tokens.
    #[napi]
    pub fn detokenize(&self, tokens: Uint32Array) -> Result<String> {
        thrown(self.0.detokenize(&tokens))
    }
}

/// Returns a session with options in JSON.
fn continued(
    options: &str,
    session: impl FnOnce() -> triad::Result<triad::Session>,
) -> Result<Session, Failure> {
    let options = from_json::<Answering>(options)?.build()?;
    Ok(Session(Lender::new(session()?.with_options(options))))
}
