//! A served model with its queue.

use std::sync::{Arc, OnceLock};

use triad_engine::sampler::SamplerOptions;
use triad_engine::{Adapter, Engine, KvUse, Model};
use triad_grammar::{Checker, Grammars};
use triad_kernels::attention::PAGE;
use triad_pictures::Processor;

use crate::error::{ApiError, ApiResult, chain};
use crate::hosted::LoadedModel;
use crate::known_pictures::KnownPictures;
use crate::metrics::ModelMetrics;
use crate::options::ServerOptions;
use crate::owner::Tenant;
use crate::pictures::{GivenPicture, PictureLimits};
use crate::prepare::Preparers;
use crate::prompt_timelines::Timelines;
use crate::queue::{Full, Need, Place, Queue};

/// A served model with its queue, metrics and grammar compiler.
pub(crate) struct ServedModel {
    name: String,
    engine: Engine,
    adapters: Vec<(String, Arc<Adapter>)>,
    is_current: Box<dyn Fn() -> bool + Send + Sync>,
    queue: Arc<Queue>,
    context: usize,
    most_choices: usize,
    keeps_letters: bool,
    metrics: ModelMetrics,
    timelines: Timelines,
    preparers: Arc<Preparers>,
    grammar_checker: Option<Checker>,
    /// Opened for the first request with a picture, or that asks whether the model reads some.
    processor: OnceLock<triad_frontend::Result<Processor>>,
    picture_limits: PictureLimits,
    known_pictures: KnownPictures,
    /// Created for the first request with structured output.
    grammars: OnceLock<triad_grammar::Result<Grammars>>,
}

impl ServedModel {
    pub(crate) fn new(
        name: String,
        model: LoadedModel,
        (options, preparers): (&ServerOptions, &Arc<Preparers>),
        metrics: ModelMetrics,
    ) -> Self {
        let LoadedModel {
            engine,
            adapters,
            is_current,
        } = model;
        let KvUse {
            budget, page_bytes, ..
        } = engine.usage().kv;
        let most = Need {
            slots: options.parallel,
            // Pages of an encoder have activations in place of keys and values.
            pages: engine.encoder_pages().unwrap_or(budget / page_bytes.max(1)),
        };
        let context = engine.context();
        Self {
            metrics,
            name,
            queue: Queue::new(most, options.queue),
            context,
            most_choices: options.parallel,
            keeps_letters: options.keeps_letters,
            engine,
            adapters,
            is_current,
            timelines: Timelines::default(),
            preparers: Arc::clone(preparers),
            grammar_checker: options.grammar_checker.clone(),
            processor: OnceLock::new(),
            picture_limits: PictureLimits {
                pictures: options.max_images,
                patches: options.max_image_patches,
            },
            known_pictures: KnownPictures::default(),
            grammars: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns whether the model is that of its files now.
    pub(crate) fn is_current(&self) -> bool {
        (self.is_current)()
    }

    /// Returns the adapters that requests may select.
    pub(crate) fn adapters(&self) -> &[(String, Arc<Adapter>)] {
        &self.adapters
    }

    /// Returns whether a head of the model proposes tokens.
    pub(crate) fn speculates(&self) -> bool {
        self.engine.no_head().is_none()
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Takes a place in the queue for a request of `client` that writes text, before anything is computed for it.
    ///
    /// # Errors
    /// If the queue is full, or the model is an encoder.
    pub(crate) fn enter(&self, client: Tenant) -> ApiResult<Place> {
        self.model().check_writes()?;
        self.enter_to_encode(client)
    }

    /// Does the same as [`ServedModel::enter`] for a request that only reads texts.
    ///
    /// # Errors
    /// If the queue is full.
    pub(crate) fn enter_to_encode(&self, client: Tenant) -> ApiResult<Place> {
        self.queue
            .enter(client)
            .map_err(|Full(waiting)| ApiError::full(waiting))
    }

    /// Returns the threads that prepare requests.
    pub(crate) fn preparers(&self) -> &Preparers {
        &self.preparers
    }

    /// Returns the metrics of this model.
    pub(crate) fn metrics(&self) -> &ModelMetrics {
        &self.metrics
    }

    /// Returns the timelines of the latest prompts.
    pub(crate) fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// Returns the processor of the model's pictures, for those that a request has.
    ///
    /// # Errors
    /// If the model reads none. The error names the field of the first picture.
    pub(crate) fn processor(&self, given: &[GivenPicture]) -> ApiResult<&Processor> {
        self.opened_processor().ok_or_else(|| {
            let field = given.first().map_or("messages", GivenPicture::field);
            ApiError::unsupported(field, "this model reads no pictures")
        })
    }

    /// Returns whether requests may have pictures.
    pub(crate) fn reads_pictures(&self) -> bool {
        self.model().vision().is_ok() && self.opened_processor().is_some()
    }

    /// Returns the processor of the model's pictures, if it can be opened.
    fn opened_processor(&self) -> Option<&Processor> {
        let processor = self.processor.get_or_init(|| {
            let opened = triad_frontend::pictures::processor(self.model());
            // The reason names files, which is for the log only.
            opened.inspect_err(|error| {
                tracing::warn!("{} reads no pictures: {}", self.name, chain(error));
            })
        });
        processor.as_ref().ok()
    }

    /// Returns the limits on the pictures of a conversation.
    pub(crate) fn picture_limits(&self) -> PictureLimits {
        self.picture_limits
    }

    /// Returns the pictures that were encoded before.
    pub(crate) fn known_pictures(&self) -> &KnownPictures {
        &self.known_pictures
    }

    /// Returns the compiler of output grammars. The first call processes the whole vocabulary.
    ///
    /// # Errors
    /// If the model does not support structured output.
    pub(crate) fn grammars(&self) -> triad_grammar::Result<&Grammars> {
        let grammars = self.grammars.get_or_init(|| {
            let grammars = Grammars::new(Arc::clone(self.model()) as _)?;
            Ok(match &self.grammar_checker {
                Some(checker) => grammars.with_checker(checker.clone()),
                None => grammars,
            })
        });
        grammars.as_ref().map_err(Clone::clone)
    }

    /// Drops the compiled grammars that no request uses.
    pub(crate) fn release_grammars(&self) {
        if let Some(Ok(grammars)) = self.grammars.get() {
            grammars.release();
        }
    }

    /// Returns the default sampling options of requests with this temperature.
    pub(crate) fn sampling(&self, temperature: Option<f32>) -> SamplerOptions {
        SamplerOptions::recommended(self.model().generation_defaults(), temperature)
    }

    /// Returns the maximum number of tokens of a prompt with its completion.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Returns the maximum number of completions per prompt.
    pub(crate) fn most_choices(&self) -> usize {
        self.most_choices
    }

    /// Returns whether names of control tokens in request texts are tokenized as plain text.
    pub(crate) fn keeps_letters(&self) -> bool {
        self.keeps_letters
    }

    /// Computes what `choices` completions of `prompt` with at most `most_tokens` tokens each need of the engine.
    ///
    /// # Errors
    /// If the prompt is empty or exceeds the context, or the KV cache is too small.
    pub(crate) fn need(
        &self,
        prompt: &[u32],
        most_tokens: Option<usize>,
        choices: usize,
    ) -> ApiResult<Need> {
        let (prompt, context) = (prompt.len(), self.context);
        if prompt == 0 {
            return Err(ApiError::empty_prompt());
        }
        if prompt > context {
            return Err(ApiError::too_long(prompt, false, context));
        }
        let tokens = most_tokens
            .map_or(self.context, |most| prompt.saturating_add(most))
            .min(self.context);
        // With several completions, each has its own copy of the prompt's last page, in addition to the original.
        let (whole, of_one) = (prompt / PAGE, tokens.div_ceil(PAGE));
        let pages = if choices == 1 {
            of_one
        } else {
            whole + 1 + choices * (of_one - whole.min(of_one))
        };
        self.fitting(Need {
            slots: choices,
            pages,
        })
    }

    /// Computes what texts of these lengths in tokens need of the engine, at most `most_pages` at a time unless one of them
    /// has more.
    ///
    /// # Errors
    /// If a text is empty or exceeds the context, or the KV cache is too small.
    pub(crate) fn need_to_encode(&self, lengths: &[usize], most_pages: usize) -> ApiResult<Need> {
        if lengths.contains(&0) {
            return Err(ApiError::empty_prompt());
        }
        if let Some(length) = lengths.iter().find(|length| **length > self.context) {
            return Err(ApiError::too_long(*length, false, self.context));
        }
        self.fitting(Need {
            slots: 1,
            pages: self.engine.encode_pages(lengths, most_pages),
        })
    }

    /// Returns a need that the queue can admit.
    fn fitting(&self, need: Need) -> ApiResult<Need> {
        let most = self.queue.most();
        if need.pages > most.pages {
            return Err(ApiError::invalid(format!(
                "the KV cache of this request may take {} pages of {PAGE} tokens, but the server has {}: request fewer \
                 tokens (max_tokens) or completions (n), or start the server with more (--kv-memory)",
                need.pages, most.pages
            ))
            .with_code("context_length_exceeded"));
        }
        Ok(need)
    }
}
