//! The models of a server: found, prepared, described and loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use triad_console::arguments::{self, ModelArgument};
use triad_console::processors::ProcessorArguments;
use triad_console::{output, progress};
use triad_engine::{EngineOptions, LoadOptions, SessionOptions, memory};
use triad_frontend::{answer, first_run, models};
use triad_hetero::HeteroOptions;
use triad_model::fetch;
use triad_model::vision::{VisionFile, mmproj_next_to};
use triad_server::{HostedModel, LoadedModel, ModelFacts};

use super::arguments::{Arguments, CONTEXT, default_model_memory};
use crate::adapters;
use crate::first_run::{Later, PreparationMode, Ready};
use crate::named_adapters;

/// Returns what the file or folder of a model shows.
fn facts(path: &Path) -> Result<ModelFacts> {
    let files = models::files_of(path)?;
    Ok(ModelFacts {
        format: files.format.into(),
        file_bytes: files.bytes,
        modified: files.modified,
        ..ModelFacts::default()
    })
}

/// Prints a note if the model at `path` reads no pictures since several encoders are next to it.
fn note_encoders(path: &Path, name: &str) {
    let encoders = match path.extension() {
        Some(extension) if extension == "gguf" => mmproj_next_to(path),
        _ => Vec::new(),
    };
    if encoders.len() > 1 {
        let names = encoders.iter().filter_map(|file| file.file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
        output::note(&format!(
            "note: {name} has several encoders of pictures next to it ({}) and reads no pictures; --mmproj names one",
            names.join(", ")
        ));
    }
}

/// A model that is found, prepared and described, but not loaded.
pub(super) struct Found {
    /// The model as its name stands for it. It runs from `path`, which may be its package.
    source: PathBuf,
    path: PathBuf,
    /// The encoder of pictures.
    vision: Option<PathBuf>,
    /// The names for clients, the first of which responses have.
    names: Vec<String>,
    context: usize,
    kv_memory: usize,
    facts: ModelFacts,
}

impl Found {
    /// Finds the model at `index`, and reads its header. Fetches the model if necessary. Also returns the bytes that the
    /// model takes when it is loaded, and the preparation of its package if it runs without one.
    pub(super) fn find(arguments: &Arguments, index: usize) -> Result<(Self, u64, Option<Later>)> {
        let given = ModelArgument {
            model: arguments.model[index].clone(),
        };
        let needs_package = arguments.several.processors.is_some();
        // A server runs for long: it is as fast as it can be from its first answer on.
        let mode =
            PreparationMode::from(arguments.float.float, needs_package, PreparationMode::First)?;
        let (path, threads) = (given.path()?, &arguments.threads);
        arguments.float.check(&path)?;
        let vision = arguments.vision.encoder(&path);
        if vision.is_none() {
            note_encoders(&path, &given.model);
        }
        let ready = |mode| Ready::find(path.clone(), &given.model, threads, mode, "start");
        let names = arguments.names(index);
        let source = (&*path, vision);
        let found = Self::describe(arguments, names.clone(), source.clone(), ready(mode)?)?;
        let most = arguments
            .model_memory
            .map_or_else(default_model_memory, |bytes| bytes as u64);
        // A package may fit where the file as it is does not.
        if matches!(found, (_, bytes, Some(_)) if bytes > most) {
            return Self::describe(arguments, names, source, ready(PreparationMode::First)?);
        }
        Ok(found)
    }

    /// Reads the header of a model of the cache, which clients call `name`. It runs from its package if it is known to have
    /// one, else from its file as it is. Also returns the bytes that it takes when it is loaded.
    pub(super) fn of_cache(arguments: &Arguments, name: &str, path: &Path) -> Result<(Self, u64)> {
        let vision = arguments.vision.encoder(path);
        let package = match first_run::find_known(path)? {
            Some(first_run::Ready::Found(found)) if !arguments.float.float => found.path,
            _ => path.to_owned(),
        };
        let ready = Ready {
            path: package,
            later: None,
        };
        let names = vec![name.to_owned()];
        let (found, bytes, _) = Self::describe(arguments, names, (path, vision), ready)?;
        Ok((found, bytes))
    }

    /// Returns the file or folder of the model, that of its encoder, and what it runs from.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let own = [&self.source, &self.path].into_iter();
        own.chain(&self.vision).cloned()
    }

    /// Returns the model as the server offers it, which takes `bytes` when it is loaded.
    pub(super) fn hosted(self, bytes: u64, arguments: &Arc<Arguments>) -> HostedModel {
        let mut names = self.names.iter().cloned();
        let (name, aliases) = (names.next().unwrap_or_default(), names.collect());
        let facts = self.facts.clone();
        let arguments = Arc::clone(arguments);
        let source = self.source.clone();
        let check = move || match fetch::pulled(&source) {
            // Another program may have removed it.
            Ok(_) if !source.exists() => {
                Err("the files of the model are not there: fetch it again".to_owned())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.message().to_owned()),
        };
        let load = move || self.load(&arguments).map_err(Into::into);
        HostedModel {
            name,
            aliases,
            bytes,
            facts,
            check: Box::new(check),
            load: Box::new(load),
        }
    }

    /// Reads the header of the model at `source`, which clients call by `names` and which runs from the files of `ready`.
    fn describe(
        arguments: &Arguments,
        names: Vec<String>,
        (source, vision): (&Path, Option<PathBuf>),
        ready: Ready,
    ) -> Result<(Self, u64, Option<Later>)> {
        let Ready { path, later } = ready;
        let description = models::description(&path, &mut progress::checking(&path))?;
        let context = arguments
            .context
            .unwrap_or(CONTEXT.min(description.context));
        let kv_memory = arguments.kv_memory(&description, context);
        let session = memory::of_session(
            &description,
            0,
            context,
            arguments.chunk,
            arguments.kv.format(),
        );
        let weights = match arguments.float.expert_memory {
            Some(limit) => {
                let all = models::weight_bytes(&path)?;
                memory::of_limited_experts(&description, all, limit as u64)
            }
            None => models::weight_bytes(&path)?,
        };
        // An encoder that can't be read is an error of loading.
        let encoder = vision.as_deref().map(VisionFile::open);
        let encoder = encoder.map_or(0, |file| file.map_or(0, |file| file.bytes()));
        let bytes = weights + (encoder + kv_memory + session.activations) as u64;
        let facts = ModelFacts {
            family: description.family.clone(),
            parameters: description.parameters() as u64,
            ..facts(&path)?
        };
        Ok((
            Self {
                source: source.to_owned(),
                path,
                vision,
                facts,
                names,
                context,
                kv_memory,
            },
            bytes,
            later,
        ))
    }

    /// Loads the model. One that runs from its package goes on with that when its own files are replaced.
    pub(super) fn load(&self, arguments: &Arguments) -> Result<LoadedModel> {
        let Self {
            path,
            vision,
            names,
            context,
            kv_memory,
            ..
        } = self;
        let name = names.first().map_or("", String::as_str);
        let pulled = fetch::pulled(path)?;
        let options = LoadOptions {
            vision: vision.clone(),
            ..arguments.float.options(arguments.threads.chosen())
        };
        let model = Arc::new(arguments::load(path, name, &options)?);
        model.tokenizer()?;
        arguments::note_settings(&model, name);
        if model.chat_template().is_none() && model.check_writes().is_ok() {
            output::note(&format!(
                "note: {name} has no chat template; it continues the last message of a chat as plain text"
            ));
        }
        let ProcessorArguments {
            processors,
            devices,
            chunks_in_flight,
            ..
        } = &arguments.several;
        let options = EngineOptions {
            session: SessionOptions {
                context: *context,
                chunk: arguments.chunk,
                kv_format: arguments.kv.format(),
            },
            kv_memory: Some(*kv_memory),
            ..EngineOptions::default()
        };
        let adapters = named_adapters::open(&model, &arguments.lora)?;
        let engine = match processors {
            Some(processors) => {
                let options = HeteroOptions {
                    engine: options,
                    policy: arguments.policy,
                    chunks_in_flight: *chunks_in_flight,
                    ..HeteroOptions::default()
                };
                let engine = processors.engine(devices, &model, options)?;
                engine.engine().clone()
            }
            None => answer::engine(&model, &options)?,
        };
        if !adapters.is_empty() {
            adapters::note_processors(&engine);
        }
        Ok(LoadedModel {
            engine,
            adapters,
            is_current: Box::new(move || !pulled.is_replaced()),
        })
    }
}
