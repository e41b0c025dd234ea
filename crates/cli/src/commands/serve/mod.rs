//! `triad serve`: serves models over HTTP.

mod arguments;
mod found;
mod library;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
pub use arguments::Arguments;
use found::Found;
use library::CacheLibrary;
use triad_server::{Shutdown, StartError, ToolHost};

use crate::preparations::Preparations;
use triad_console::interrupt::on_interrupt;
use triad_console::output;

/// Connects to MCP servers.
#[cfg(feature = "mcp")]
fn page_tools(given: &[String]) -> Result<Arc<dyn ToolHost>> {
    Ok(Arc::new(crate::host_tools::PageTools::connect(given)?))
}

#[cfg(not(feature = "mcp"))]
fn page_tools(_: &[String]) -> Result<Arc<dyn ToolHost>> {
    anyhow::bail!(triad_console::version::without("mcp"))
}

/// Runs the server until Ctrl-C.
pub fn run(arguments: Arguments) -> Result<()> {
    arguments.nice.apply()?;
    let mut options = arguments.server_options()?;
    options.check()?;
    // Found out before models are fetched and prepared, which may take minutes.
    if arguments.allow_pull {
        options.check_pulls()?;
    }
    if !arguments.mcp.is_empty() {
        ensure!(!options.api_keys.is_empty(), StartError::ToolsWithoutKey);
        options.tools = Some(page_tools(&arguments.mcp)?);
    }
    // They end here, since a thread of the server must not wait for them.
    let _tools = options.tools.clone();
    if let Some(folder) = &arguments.sessions {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    arguments.several.check(arguments.float.float)?;
    let has_processors = arguments.several.processors.is_some();
    arguments.threads.note_processors(has_processors);
    ensure!(
        arguments.several.timeline.is_none(),
        "--timeline is for one prompt: expected it with triad run"
    );
    let (given, names) = (arguments.model.len(), arguments.alias.len());
    ensure!(
        names <= given,
        "--alias has {names} names, but -m {given} models: expected at most one name for each"
    );
    ensure!(
        arguments
            .alias
            .iter()
            .all(|names| names.split(',').all(|name| !name.trim().is_empty())),
        "--alias has an empty name: expected names with commas between them"
    );
    ensure!(
        arguments.vision.mmproj.is_none() || given == 1,
        "--mmproj is for one model, but -m has {given}: expected a separate server for a model with an encoder"
    );
    ensure!(
        arguments.lora.is_empty() || given == 1,
        "--lora is for one model, but -m has {given}: expected a separate server for a model with adapters"
    );
    let arguments = Arc::new(arguments);
    let (mut all_later, mut kept) = (Vec::new(), Vec::new());
    let mut hosted = |index| {
        let (found, bytes, later) = Found::find(&arguments, index)?;
        kept.extend(found.paths());
        kept.extend(later.iter().map(|later| later.package().to_owned()));
        all_later.extend(later);
        Ok(found.hosted(bytes, &arguments))
    };
    let models = (0..given).map(&mut hosted).collect::<Result<Vec<_>>>()?;
    if arguments.allow_pull {
        options.library = Some(Arc::new(CacheLibrary::new(&arguments, kept)));
    }
    let names = models
        .iter()
        .map(|model| &*model.name)
        .collect::<Vec<_>>()
        .join(", ");
    let shutdown = Shutdown::default();
    let on_ctrl_c = shutdown.clone();
    let _guard = on_interrupt(move || {
        output::note("stopping; Ctrl-C again stops at once");
        on_ctrl_c.begin();
    });
    // Packages are prepared while the server answers, and no longer.
    let mut preparations = None;
    let ready = |address| {
        output::note(&format!(
            "{names} at http://{address}; Ctrl-C ends the server"
        ));
        preparations = Some(Preparations::start(all_later));
    };
    let served = triad_server::serve(options, models, &shutdown, ready);
    drop(preparations);
    Ok(served?)
}
