//! A model ready to run.

use std::path::Path;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};
use triad_model::ErrorKind;
use triad_model::checkpoint::{Checkpoint, GenerationDefaults};
use triad_model::description::ModelDescription;
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::{Special, Tokenizer};

use crate::error::{Error, Result};
use crate::weights::Weights;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Threads that compute; `None`: one for each core that the process may use.
    pub threads: Option<usize>,
}

/// Description, weights, tokenizer, template, threads: everything that sessions share.
pub struct Model {
    description: ModelDescription,
    weights: Weights,
    /// Or why there is none.
    tokenizer: Result<Tokenizer, String>,
    template: Option<ChatTemplate>,
    generation_defaults: GenerationDefaults,
    pool: ThreadPool,
}

impl Model {
    /// Opens a GGUF file or a safetensors folder.
    ///
    /// # Errors
    /// If the file is damaged or holds what Triad does not run.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self> {
        Self::from_checkpoint(&Arc::new(Checkpoint::open(path)?), options)
    }

    /// Makes the weights of an opened model file ready to run.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_checkpoint(checkpoint: &Arc<Checkpoint>, options: &LoadOptions) -> Result<Self> {
        let pool = pool(options)?;
        // Tokenizer and weights have nothing to do with each other: both are read at the same time.
        let (weights, text) = pool.join(|| Weights::load(checkpoint), || text(checkpoint));
        let (tokenizer, template) = text?;
        Ok(Self {
            description: checkpoint.description().clone(),
            weights: weights?,
            tokenizer,
            template,
            generation_defaults: checkpoint.generation_defaults().clone(),
            pool,
        })
    }

    /// A model of this description with random weights in bf16 and no tokenizer: as fast as a real one.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn random(description: ModelDescription, options: &LoadOptions, seed: u64) -> Result<Self> {
        let pool = pool(options)?;
        let weights = pool.install(|| Weights::random(&description, seed));
        Ok(Self {
            description,
            weights,
            tokenizer: Err("its weights are random".into()),
            template: None,
            generation_defaults: GenerationDefaults::default(),
            pool,
        })
    }

    /// The same model on another number of threads.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn with_threads(self, threads: usize) -> Result<Self> {
        Ok(Self { pool: pool(&LoadOptions { threads: Some(threads) })?, ..self })
    }

    /// What the model is.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// Its weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// If the file has none: such a model runs on token ids only.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.clone() })
    }

    /// Its chat template, if the file has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Sampling as the model's authors recommend it.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.generation_defaults
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Tokens of a plain prompt, with the model's leading special token if it has one.
    ///
    /// # Errors
    /// If the model has no tokenizer or the text is empty.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        if text.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        Ok(tokenizer.encode(text, Special::AsText)?)
    }

    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let threads = self.threads();
        f.debug_struct("Model")
            .field("description", &self.description)
            .field("threads", &threads)
            .finish_non_exhaustive()
    }
}

/// What a model needs to read and write text: the tokenizer, or why there is none, and the chat template.
type Text = (Result<Tokenizer, String>, Option<ChatTemplate>);

/// A tokenizer that is not there is no error yet; one that is there but damaged is.
fn text(checkpoint: &Checkpoint) -> Result<Text> {
    match Tokenizer::from_checkpoint(checkpoint) {
        Ok(tokenizer) => {
            let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer)?;
            Ok((Ok(tokenizer), template))
        }
        Err(error) if error.kind() == ErrorKind::Missing => Ok((Err(error.to_string()), None)),
        Err(error) => Err(error.into()),
    }
}

fn pool(options: &LoadOptions) -> Result<ThreadPool> {
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if !(1..=1024).contains(&threads) {
        let value = threads.to_string();
        return Err(Error::Option { name: "the number of threads", value, expected: "1 to 1024" });
    }
    let builder = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("triad-{index}"));
    builder.build().map_err(|error| Error::Threads { threads, reason: error.to_string() })
}
