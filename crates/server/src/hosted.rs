//! A model that is served.

use std::sync::{Arc, OnceLock};

use triad_engine::sampler::SamplerOptions;
use triad_engine::{Adapter, Engine, KvUse, Model};
use triad_grammar::{Checker, Grammars};
use triad_kernels::attention::PAGE;

use crate::counters::ModelMetrics;
use crate::error::{ApiError, ApiResult};
use crate::options::ServerOptions;
use crate::owner::Tenant;
use crate::prepare::Preparers;
use crate::prompt_timelines::Timelines;
use crate::queue::{Full, Need, Place, Queue};

/// A model in memory.
#[derive(Debug)]
pub struct LoadedModel {
    /// What computes it.
    pub engine: Engine,
    /// LoRA adapters that were opened for it, each with a name of its own by which requests ask for it.
    pub adapters: Vec<(String, Arc<Adapter>)>,
}

/// A model that is served.
pub(crate) struct Hosted {
    name: String,
    engine: Engine,
    adapters: Vec<(String, Arc<Adapter>)>,
    queue: Arc<Queue>,
    context: usize,
    most_choices: usize,
    keeps_letters: bool,
    metrics: ModelMetrics,
    timelines: Timelines,
    preparers: Arc<Preparers>,
    grammar_checker: Option<Checker>,
    /// Made for the first answer that has a form.
    grammars: OnceLock<triad_grammar::Result<Grammars>>,
}

impl Hosted {
    pub(crate) fn new(
        name: String,
        model: LoadedModel,
        (options, preparers): (&ServerOptions, &Arc<Preparers>),
        metrics: ModelMetrics,
    ) -> Self {
        let LoadedModel { engine, adapters } = model;
        let KvUse {
            budget, page_bytes, ..
        } = engine.usage().kv;
        let most = Need {
            slots: options.parallel,
            pages: budget / page_bytes.max(1),
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
            timelines: Timelines::default(),
            preparers: Arc::clone(preparers),
            grammar_checker: options.grammar_checker.clone(),
            grammars: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The adapters that requests may ask for.
    pub(crate) fn adapters(&self) -> &[(String, Arc<Adapter>)] {
        &self.adapters
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Takes a place for a request of `client`, before anything is computed for it.
    ///
    /// # Errors
    /// If too many wait.
    pub(crate) fn enter(&self, client: Tenant) -> ApiResult<Place> {
        self.queue
            .enter(client)
            .map_err(|Full(waiting)| ApiError::full(waiting))
    }

    /// Returns what prepares its requests.
    pub(crate) fn preparers(&self) -> &Preparers {
        &self.preparers
    }

    /// What is counted of it.
    pub(crate) fn metrics(&self) -> &ModelMetrics {
        &self.metrics
    }

    /// How its latest prompts were computed.
    pub(crate) fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// What compiles forms of its answers. The first call goes through all tokens.
    ///
    /// # Errors
    /// If its answers can't have a form.
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

    /// How tokens are chosen where a request leaves it out: as the model's authors recommend, else greedy.
    pub(crate) fn sampling(&self) -> SamplerOptions {
        SamplerOptions::recommended(self.model().generation_defaults())
    }

    /// Tokens of a prompt and its answer, at most.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Answers to one prompt, at most.
    pub(crate) fn most_choices(&self) -> usize {
        self.most_choices
    }

    /// Whether names of control tokens in texts stay letters.
    pub(crate) fn keeps_letters(&self) -> bool {
        self.keeps_letters
    }

    /// What `choices` answers of at most `most_tokens` behind `prompt` take of the engine.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit, or that is more than the engine has.
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
            let message = format!("the prompt has {prompt} tokens, but the context is {context}");
            return Err(ApiError::invalid(message).with_code("context_length_exceeded"));
        }
        let tokens = most_tokens
            .map_or(self.context, |most| prompt.saturating_add(most))
            .min(self.context);
        // Of several answers each has its own copy of the prompt's last page, and nobody else has the original.
        let (whole, of_one) = (prompt / PAGE, tokens.div_ceil(PAGE));
        let pages = if choices == 1 {
            of_one
        } else {
            whole + 1 + choices * (of_one - whole.min(of_one))
        };
        let (need, most) = (
            Need {
                slots: choices,
                pages,
            },
            self.queue.most(),
        );
        if need.pages > most.pages {
            return Err(ApiError::invalid(format!(
                "keys and values of this request may take {} pages of {PAGE} tokens, but the server has memory for {}: ask \
                 for fewer tokens (max_tokens) or answers (n), or start it with more (--kv-memory)",
                need.pages, most.pages
            ))
            .with_code("context_length_exceeded"));
        }
        Ok(need)
    }
}
