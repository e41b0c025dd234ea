//! `triad-lab study prefixes`: measures conversations with a common prefix.

use anyhow::{Context, Result};
use serde::Serialize;
use triad_engine::{EngineOptions, SessionOptions};
use triad_frontend::answer;
use triad_kernels::attention::PAGE;
use triad_lab::measured::prefixes::{self, Plan, Prefixes};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, KvArgument, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::{output, progress};

/// Measure what conversations with a common prefix share: time to the first token, pages of the KV cache, memory; and
/// how long saving a conversation to a file and restoring it takes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study prefixes
  triad-lab study prefixes --shared 2000 --own 100 --conversations 50 --svg prefixes.svg")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Tokens of the common prefix
    #[arg(long, value_name = "N", default_value = "2000", value_parser = arguments::tokens)]
    shared: usize,
    /// Further tokens of each prompt
    #[arg(long, value_name = "N", default_value = "50", value_parser = arguments::tokens)]
    own: usize,
    /// Conversations, all kept until the end
    #[arg(long, value_name = "N", default_value = "50", value_parser = arguments::sequences)]
    conversations: usize,
    #[command(flatten)]
    kv: KvArgument,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    #[serde(flatten)]
    prefixes: Prefixes,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    let Arguments {
        shared,
        own,
        conversations,
        ..
    } = *arguments;
    let prompt = arguments::prompt_tokens(Some(shared.saturating_add(own)), model.description())?;
    let session = SessionOptions {
        context: prompt,
        kv_format: arguments.kv.format(),
        ..SessionOptions::default()
    };
    let page = model
        .description()
        .kv_bytes_per_token(|head_dim| session.kv_format.bytes(head_dim))
        * PAGE;
    // Each conversation has its own pages and a copy of the page in which it diverges. The rest is for the common
    // prefix and the first run.
    let pages = (conversations + 1) * (own.div_ceil(PAGE) + 2) + 2 * prompt.div_ceil(PAGE);
    let options = EngineOptions {
        kv_memory: Some(pages * page),
        session,
        ..EngineOptions::default()
    };
    let engine = answer::engine(&model, &options)?;
    let folder = tempfile::tempdir().context("cannot make a folder for a saved session")?;
    arguments.output.show(name, |cancel| {
        let bar = progress::prompts("conversations".to_owned(), conversations);
        let plan = Plan {
            shared,
            own,
            conversations,
        };
        let prefixes = prefixes::run(
            &engine,
            &plan,
            &folder.path().join("session"),
            cancel,
            |done| bar.set(done),
        )?;
        Ok(Found {
            model: title_of(name),
            prefixes,
        })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let Prefixes {
            shared,
            own,
            page_bytes,
            conversations,
            cold_seconds,
            ..
        } = &self.prefixes;
        let names = [
            "conversation",
            "first token, ms",
            "tokens found",
            "pages",
            "shared",
            "memory",
        ];
        let last = conversations.len().saturating_sub(1);
        let mut shown = vec![0, 1, 2, last / 2, last];
        shown.retain(|index| *index <= last);
        shown.sort_unstable();
        shown.dedup();
        let row = |index: &usize| {
            let of = &conversations[*index];
            vec![
                (index + 1).to_string(),
                format!("{:.1}", 1e3 * of.seconds_to_first_token),
                of.found.to_string(),
                of.pages.to_string(),
                of.shared_pages.to_string(),
                output::bytes(of.bytes as u64),
            ]
        };
        let rows: Vec<_> = shown.iter().map(row).collect();
        let mut later: Vec<_> = conversations
            .iter()
            .skip(1)
            .map(|of| of.seconds_to_first_token)
            .collect();
        later.sort_by(f64::total_cmp);
        let median = later.get(later.len() / 2).copied().unwrap_or(*cold_seconds);
        format!(
            "{}: {shared} common tokens, {own} further ones per conversation, pages of {}\n\n{}\nlater conversations: first token after {:.1} ms (median), {:.1} times as fast as the first\nsaved in {:.3} s, {}; restored in {:.3} s",
            self.model,
            output::bytes(*page_bytes as u64),
            output::table(&names, 0, &rows),
            1e3 * median,
            cold_seconds / median,
            self.prefixes.save_seconds,
            output::bytes(self.prefixes.file_bytes),
            self.prefixes.restore_seconds,
        )
    }

    fn figure(&self) -> Figure {
        let conversations = &self.prefixes.conversations;
        let over = |name: &str, value: fn(&prefixes::Conversation) -> f64| {
            let points = conversations
                .iter()
                .enumerate()
                .map(|(index, of)| ((index + 1) as f64, value(of)));
            Series::new(name, Mark::LineWithMarkers, points)
        };
        let chart = |y: &str, series: Series| {
            Panel::Chart(Chart {
                title: String::new(),
                x: Axis::linear("conversation"),
                y: Axis::linear(y),
                series: vec![series],
                guides: Vec::new(),
            })
        };
        let panels = vec![
            chart(
                "ms to the first token",
                over("first token", |of| 1e3 * of.seconds_to_first_token),
            ),
            chart(
                "MiB of keys and values",
                over("memory", |of| of.bytes as f64 / f64::from(1 << 20)),
            ),
        ];
        let Prefixes { shared, own, .. } = &self.prefixes;
        Figure {
            title: format!(
                "{}: {shared} common tokens, {own} further ones each",
                self.model
            ),
            panels,
            columns: 2,
        }
    }
}
