//! A model ready to run.

mod head;
mod text;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};
use triad_kernels::pool::Pool;
use triad_model::ErrorKind;
use triad_model::checkpoint::{Checkpoint, EmbeddingDefaults, GenerationDefaults};
use triad_model::description::ModelDescription;
use triad_model::mapped::MappedFile;
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::{EncodeOptions, Tokenizer};
use triad_model::vision::mmproj_next_to;

use crate::adapter::Adapter;
use crate::error::{Error, Result};
use crate::hexadecimal;
use crate::load_options::{ExpertLimit, LoadOptions};
use crate::outlier_cache::HotChannels;
use crate::package::{self, Package};
use crate::quantization::{LinearFormat, Quantization};
use crate::threads::Threads;
use crate::vision::VisionModel;
use crate::weights::{ExpertMemory, ExpertUse, Weights};
use text::{Text, text};

/// Description, weights, tokenizer, template and threads: everything that sessions share.
pub struct Model {
    description: ModelDescription,
    weights: Weights,
    /// Shared by the models that are derived from this one.
    text: Arc<Text>,
    generation_defaults: GenerationDefaults,
    pool: Arc<Pool>,
    /// The files that contain its weights, or that they were made from.
    files: Vec<MappedFile>,
    /// The package of the model, if it has one.
    package: Option<OpenedPackage>,
    /// See [`Model::fingerprint`].
    fingerprint: OnceLock<String>,
    /// The encoder of pictures, or the reason why there is none.
    vision: Arc<VisionResult>,
    /// The head that predicts one more token.
    mtp: Option<Arc<Model>>,
}

type VisionResult = Result<VisionModel, Arc<triad_model::Error>>;

/// The data of a package that its model keeps.
struct OpenedPackage {
    path: PathBuf,
    /// The sha256 of the weights.
    weights: String,
    linears: LinearFormat,
    hot_channels: HotChannels,
}

impl Model {
    /// Opens a package, a GGUF file or a safetensors folder.
    ///
    /// # Errors
    /// If the file is damaged, or contains a model that Triad does not support.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self> {
        if Package::is_at(path) {
            return Self::from_package(&Package::open(path)?, options);
        }
        Self::from_checkpoint(&Arc::new(Checkpoint::open(path)?), options)
    }

    /// Loads the weights of an opened model file.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_checkpoint(checkpoint: &Arc<Checkpoint>, options: &LoadOptions) -> Result<Self> {
        let pool = pool(options)?;
        // Tokenizer and weights are independent of each other, and are read concurrently.
        let text = || {
            text(
                checkpoint.source(),
                checkpoint.generation_defaults(),
                checkpoint.path(),
                checkpoint.description().classifier().is_some(),
            )
        };
        let (weights, text) = concurrently(
            || {
                pool.install(|| {
                    let weights = Weights::load(checkpoint, options.block_arithmetic)?;
                    let head = Weights::load_mtp(checkpoint, options.block_arithmetic, &weights)?;
                    Ok::<_, triad_model::Error>((weights, head))
                })
            },
            text,
        );
        let (weights, head) = weights?;
        let model = Self {
            description: checkpoint.description().clone(),
            weights: limited(weights, options)?,
            text: Arc::new(text?),
            generation_defaults: checkpoint.generation_defaults().clone(),
            pool,
            files: checkpoint.mapped_files().to_vec(),
            package: None,
            fingerprint: OnceLock::new(),
            vision: vision(Some(checkpoint.path()), checkpoint.description(), options)?,
            mtp: None,
        }
        .with_head(head);
        model.check_unchanged()?;
        Ok(model)
    }

    /// Loads a prepared model. Its matrices stay where the package has them, mapped or in huge pages.
    ///
    /// # Errors
    /// If numbers in the package are impossible, or its tokenizer or template is damaged.
    pub fn from_package(package: &Package, options: &LoadOptions) -> Result<Self> {
        let pool = pool(options)?;
        let generation_defaults = &package.manifest().generation;
        let text = || {
            text(
                &package.source()?,
                generation_defaults,
                package.path(),
                false,
            )
        };
        let (weights, text) = concurrently(
            || pool.install(|| package.weights(options.block_arithmetic)),
            text,
        );
        let weights = weights?;
        let head = package.mtp(&weights)?;
        let model = Self {
            description: package.description().clone(),
            weights: limited(weights, options)?,
            text: Arc::new(text?),
            generation_defaults: generation_defaults.clone(),
            pool,
            files: vec![package.mapped_file().clone()],
            package: Some(OpenedPackage {
                path: package.path().to_owned(),
                weights: package.manifest().files[package::WEIGHTS].sha256.clone(),
                linears: package.manifest().preparation.options.plan.linears,
                hot_channels: package.manifest().preparation.hot_channels(),
            }),
            fingerprint: OnceLock::new(),
            vision: match (&options.vision, package.vision()?) {
                (None, Some(vision)) => Arc::new(Ok(vision)),
                _ => vision(None, package.description(), options)?,
            },
            mtp: None,
        }
        .with_head(head);
        model.check_unchanged()?;
        Ok(model)
    }

    /// Returns the encoder of pictures.
    ///
    /// # Errors
    /// If the model reads none, or Triad does not support its encoder.
    pub fn vision(&self) -> Result<&VisionModel> {
        let vision = self.vision.as_ref().as_ref();
        vision.map_err(|reason| Error::NoPictures {
            source: Arc::clone(reason),
        })
    }

    /// Returns what was read of the experts, if not all of them stay in memory.
    pub fn expert_use(&self) -> Option<ExpertUse> {
        self.weights.expert_memory.as_ref().map(ExpertMemory::usage)
    }

    /// Checks that the files of the model have not changed since they were loaded. Called before any result is
    /// returned.
    ///
    /// # Errors
    /// [`Error::Changed`] if another program changed a file in place, or truncated it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files
            .iter()
            .try_for_each(MappedFile::check_unchanged)
            .map_err(Error::Changed)
    }

    /// Creates a model with this description, random bf16 weights and no tokenizer. It is as fast as a real model.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn random(description: ModelDescription, options: &LoadOptions, seed: u64) -> Result<Self> {
        let pool = pool(options)?;
        let weights = pool.install(|| Weights::random(&description, seed));
        let no_text = || triad_model::Error::new(ErrorKind::Missing, "its weights are random");
        Ok(Self {
            description,
            weights,
            text: Arc::new(Text {
                tokenizer: Err(Arc::new(no_text())),
                template: None,
                pairs: None,
                embedding: EmbeddingDefaults::default(),
            }),
            generation_defaults: GenerationDefaults::default(),
            pool,
            files: Vec::new(),
            package: None,
            fingerprint: OnceLock::new(),
            vision: Arc::new(Err(Arc::new(no_text()))),
            mtp: None,
        })
    }

    /// Returns the same model with another number of threads.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn with_threads(self, threads: usize) -> Result<Self> {
        let pool = pool(&LoadOptions {
            threads: Threads::Count(threads),
            ..Default::default()
        })?;
        let mtp = self.mtp.as_deref();
        let mtp = mtp.map(|head| head.derived(head.weights.of_head_for(&head.weights), &pool));
        Ok(Self {
            mtp: mtp.map(Arc::new),
            pool,
            ..self
        })
    }

    /// Returns the same model with another encoder of pictures.
    pub fn with_vision(self, encoder: VisionModel) -> Self {
        Self {
            vision: Arc::new(Ok(encoder)),
            ..self
        }
    }

    /// Returns this float model with its linear layers in INT8.
    ///
    /// # Panics
    /// If `quantization` is for another number of blocks.
    pub fn quantize(&self, quantization: &Quantization) -> Self {
        self.with_weights(self.install(|| self.weights.quantize(quantization, None)))
    }

    /// Quantizes as [`Model::quantize`] does. `known` is the result for a plan that differs only in clip thresholds,
    /// shadows and smoothing: equal matrices are shared with it.
    ///
    /// # Panics
    /// If `quantization` or `known` is for another number of blocks.
    pub fn quantize_sharing(&self, known: &Self, quantization: &Quantization) -> Self {
        self.with_weights(
            self.install(|| self.weights.quantize(quantization, Some(&known.weights))),
        )
    }

    /// Returns this model with these weights, which have the same shapes.
    pub fn with_weights(&self, weights: Weights) -> Self {
        let head = self.mtp.as_ref();
        let head = head.map(|head| head.weights.of_head_for(&weights));
        self.derived(weights, &self.pool).with_head(head)
    }

    /// Returns a model of the same files with other weights, without a head.
    fn derived(&self, weights: Weights, pool: &Arc<Pool>) -> Self {
        Self {
            description: self.description.clone(),
            weights,
            text: Arc::clone(&self.text),
            generation_defaults: self.generation_defaults.clone(),
            pool: Arc::clone(pool),
            files: self.files.clone(),
            package: None,
            fingerprint: OnceLock::new(),
            vision: Arc::clone(&self.vision),
            mtp: None,
        }
    }

    /// Runs `work` on the model's threads: operators of `triad-kernels` in it use all of them.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        self.pool.install(work)
    }

    /// Returns the description of the model.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// Returns the weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Returns an identifier of the function that the model computes: a hash of its description and of all weights. The
    /// first call reads all weights.
    pub fn fingerprint(&self) -> String {
        let name = self.fingerprint.get_or_init(|| {
            let mut hash = Sha256::new();
            // A head changes no answer.
            let description = ModelDescription {
                mtp: None,
                ..self.description.clone()
            };
            // Without the field, as before there were heads: saved sessions stay valid.
            hash.update(format!("{description:?}").replacen(", mtp: None", "", 1));
            self.weights.visit(&mut |bytes| hash.update(bytes));
            hexadecimal(&hash.finalize())
        });
        name.clone()
    }

    /// Returns the path of the package, if the model has one.
    pub fn package(&self) -> Option<&Path> {
        self.package.as_ref().map(|package| package.path.as_path())
    }

    /// Returns the format of the linear layers, if the model has a package. Other models run as they are stored.
    pub fn package_format(&self) -> Option<LinearFormat> {
        self.package.as_ref().map(|package| package.linears)
    }

    /// Returns the channels that calibration found hot, if the model is an INT8 package.
    pub fn hot_channels(&self) -> Option<&HotChannels> {
        self.package.as_ref().map(|package| &package.hot_channels)
    }

    /// Returns the name of the weights: the sha256 of those in a package, else the [fingerprint](Model::fingerprint).
    pub fn weights_name(&self) -> String {
        self.package
            .as_ref()
            .map_or_else(|| self.fingerprint(), |package| package.weights.clone())
    }

    /// Opens a LoRA adapter for this model: a GGUF file, or a folder as PEFT writes it ([`Adapter::open`]).
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or is for another model.
    pub fn open_adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        Ok(Arc::new(Adapter::open(path, &self.description)?))
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// If the file has none: such a model runs only on token ids.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.text
            .tokenizer
            .as_ref()
            .map_err(|reason| Error::NoTokenizer {
                source: Arc::clone(reason),
            })
    }

    /// Returns the chat template, if the file has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.text.template.as_ref()
    }

    /// Returns the template of a query and a document, if the model is a classifier and its files have one.
    pub fn pair_template(&self) -> Option<&ChatTemplate> {
        self.text.pairs.as_ref()
    }

    /// Returns the sampling options that the model's authors recommend.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.generation_defaults
    }

    /// Returns the rules for vectors of texts that the model's authors state.
    pub fn embedding_defaults(&self) -> &EmbeddingDefaults {
        &self.text.embedding
    }

    /// Returns the number of threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the tokens of a plain prompt, with the model's leading special token if it has one.
    ///
    /// # Errors
    /// If the model has no tokenizer or the text is empty.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        if text.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        Ok(tokenizer.encode(text, EncodeOptions::TEXT)?)
    }

    /// Returns the weights, for tests that replace them.
    #[cfg(any(test, feature = "testing"))]
    pub fn weights_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }

    /// Returns the threads that compute.
    pub fn pool(&self) -> &Pool {
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

/// Loads the encoder that the options name, or that of the model's own files at `own`. An error of these is kept for the
/// first picture: the model's text needs no encoder.
fn vision(
    own: Option<&Path>,
    text: &ModelDescription,
    options: &LoadOptions,
) -> Result<Arc<VisionResult>> {
    let load = |path: &Path| VisionModel::load(path, text, options.block_arithmetic);
    if let Some(path) = &options.vision {
        return Ok(Arc::new(Ok(load(path)?)));
    }
    let missing = |message: &str| triad_model::Error::new(ErrorKind::Missing, message);
    Ok(Arc::new(match own {
        Some(path) if path.extension().is_none_or(|it| it != "gguf") => match load(path) {
            Ok(vision) => Ok(vision),
            Err(Error::Model(reason)) => Err(Arc::new(reason)),
            Err(error) => return Err(error),
        },
        Some(path) => Err(Arc::new(missing(&match &mmproj_next_to(path)[..] {
            [first, second, ..] => format!(
                "several encoders of pictures are next to it, such as {} and {}: give one of them, too",
                first.display(),
                second.display()
            ),
            _ => "a GGUF file has no encoder of pictures: give its mmproj file, too".into(),
        }))),
        None => Err(Arc::new(missing(
            "a package has no encoder of pictures: give its mmproj file or its folder, too",
        ))),
    }))
}

/// Returns the weights with the memory of experts that the options ask for.
fn limited(mut weights: Weights, options: &LoadOptions) -> Result<Weights> {
    if let Some(ExpertLimit { bytes, reads_ahead }) = options.expert_memory {
        weights.expert_memory = Some(ExpertMemory::new(&weights.blocks, bytes, reads_ahead)?);
    }
    Ok(weights)
}

fn pool(options: &LoadOptions) -> Result<Arc<Pool>> {
    options.threads.start().map(Arc::new)
}

/// Runs two computations concurrently, and returns both results.
fn concurrently<A, B: Send>(
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        (
            first,
            second
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    })
}
