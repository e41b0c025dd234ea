//! Opens an engine by a model's name in one call, for programs without a terminal, such as the bindings to other
//! languages.

use std::cell::RefCell;
use std::sync::Arc;

use triad_engine::{
    Cancel, Engine, EngineOptions, Error as EngineError, LoadOptions, SessionOptions, Threads,
};
use triad_model::fetch;
use triad_prepare::package::Progress;

use crate::error::Result;
use crate::{answer, kernels, models, packages, pictures};

/// The default context of an engine, in tokens, if the model has as much.
pub const CONTEXT: usize = 4096;

/// Options for opening a model.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Runs a model file in float, without preparing it.
    pub float: bool,
    /// Threads that compute.
    pub threads: Threads,
    /// Maximum tokens of a prompt and its answer together; `None`: [`CONTEXT`], or the model's context if that is less.
    pub context: Option<usize>,
    /// Other options of its sessions; its `context` is ignored.
    pub session: SessionOptions,
}

/// Opens an engine for the model `name`. Fetches and prepares the model if it is not in the cache. `step` is called
/// with a sentence for the user when a step begins.
///
/// # Errors
/// If there is no such model, it cannot be fetched, read or prepared, or does not fit into memory; if `cancel` is set.
pub fn open(
    name: &str,
    options: &OpenOptions,
    cancel: &Cancel,
    step: &mut dyn FnMut(&str),
) -> Result<Engine> {
    kernels::use_fastest(|| step(kernels::TIMING));
    let path = {
        let steps = Steps {
            step: RefCell::new(step),
            cancel,
        };
        let path = models::path_of(name, &steps);
        cancel.check()?;
        path?
    };
    let vision = pictures::encoder_of(&path);
    let mut latest = "";
    let mut prepare = |progress| {
        let next = sentence(progress);
        if next != latest {
            latest = next;
            step(next);
        }
    };
    let path = if options.float {
        path
    } else {
        packages::package_of(
            &path,
            options.threads.clone(),
            cancel,
            &mut |_, _| {},
            &mut prepare,
        )?
        .path
    };
    cancel.check()?;
    step(&format!("loading {name}"));
    let load = LoadOptions {
        threads: options.threads.clone(),
        vision,
        ..Default::default()
    };
    let model = Arc::new(models::load(&path, &load, &mut |_, _| {})?);
    cancel.check()?;
    let context = options
        .context
        .unwrap_or(CONTEXT.min(model.description().context));
    if context == 0 {
        return Err(EngineError::Option {
            name: "the context",
            value: "0".into(),
            expected: "at least 1",
        }
        .into());
    }
    let session = SessionOptions {
        context,
        ..options.session.clone()
    };
    answer::engine(
        &model,
        &EngineOptions {
            session,
            ..EngineOptions::default()
        },
    )
}

/// Describes a step of the preparation in a few words.
pub fn sentence(progress: Progress) -> &'static str {
    match progress {
        Progress::Waiting => "waiting for another process that prepares this model",
        Progress::Loading => "reading the model",
        Progress::Deciding => "choosing clip thresholds and shadows",
        Progress::Measuring { .. } => "measuring layers",
        Progress::Calibrating { .. } => "calibrating",
        Progress::CalibratingPictures { .. } => "calibrating on pictures",
        Progress::Writing { .. } => "quantizing",
    }
}

/// Passes the steps of a fetch to a closure.
struct Steps<'a> {
    step: RefCell<&'a mut dyn FnMut(&str)>,
    cancel: &'a Cancel,
}

impl fetch::Progress for Steps<'_> {
    fn step(&self, what: &str) {
        (self.step.borrow_mut())(what);
    }

    fn bytes(&self, _: &str, _: u64, _: Option<u64>) {}

    fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::testing::tiny_llama;

    #[test]
    fn a_model_file_is_opened_with_the_context_that_was_asked_for_or_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, tiny_llama().build()).unwrap();
        let name = path.to_str().unwrap();
        let opened = |context| {
            let options = OpenOptions {
                float: true,
                context,
                threads: Threads::Count(1),
                ..OpenOptions::default()
            };
            let mut steps = Vec::new();
            let engine = open(name, &options, &Cancel::new(), &mut |step| {
                steps.push(step.to_owned());
            });
            engine.map(|engine| {
                (
                    engine.context(),
                    engine.model().description().context,
                    steps,
                )
            })
        };
        let (context, longest, steps) = opened(None).unwrap();
        assert_eq!(context, longest.min(CONTEXT));
        let steps: Vec<_> = steps
            .into_iter()
            .filter(|step| step != kernels::TIMING)
            .collect();
        assert_eq!(steps, [format!("loading {name}")]);
        assert_eq!(opened(Some(8)).unwrap().0, 8);
        assert!(opened(Some(0)).unwrap_err().to_string().contains("context"));
        assert!(opened(Some(longest + 1)).is_err());
    }

    #[test]
    fn a_cancelled_opening_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, tiny_llama().build()).unwrap();
        let cancel = Cancel::new();
        cancel.cancel();
        let options = OpenOptions {
            float: true,
            ..OpenOptions::default()
        };
        let error = open(path.to_str().unwrap(), &options, &cancel, &mut |_| {}).unwrap_err();
        assert!(
            matches!(error.engine(), Some(EngineError::Cancelled)),
            "{error}"
        );
    }
}
