//! `triad list`: shows the models in the cache.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use serde::Serialize;
use triad_model::fetch;

use triad_console::output;

/// Show the models in the cache, with their sizes, and those whose fetch has not ended.
///
/// `triad pull` continues such a fetch, and `triad remove` deletes what is there of it. The last line has the packages that were prepared from model files, which `triad remove` removes with their model.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad list
  triad list --json")]
pub struct Arguments {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    bytes: u64,
    /// The file or folder; none for a model whose fetch has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    complete: bool,
}

/// Prints the models.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (models, unfinished) = (fetch::cached()?, fetch::unfinished()?);
    if arguments.json {
        let models = models.into_iter().map(|model| Listed {
            name: model.name,
            bytes: model.bytes,
            path: Some(model.path.display().to_string()),
            complete: true,
        });
        let unfinished = unfinished.into_iter().map(|model| Listed {
            name: model.name,
            bytes: model.bytes,
            path: None,
            complete: false,
        });
        return output::json(&models.chain(unfinished).collect::<Vec<_>>());
    }
    if models.is_empty() && unfinished.is_empty() {
        output::note("there are no models in the cache; triad pull fetches one");
        return Ok(());
    }
    let row = |model: &fetch::CachedModel| {
        let age = model.modified.map_or_else(String::new, age);
        vec![model.name.clone(), output::bytes(model.bytes), age]
    };
    let unfinished_row = |model: &fetch::UnfinishedModel| {
        let state = match model.is_running {
            true => "being fetched",
            false => "unfinished",
        };
        vec![
            model.name.clone(),
            output::bytes(model.bytes),
            state.to_owned(),
        ]
    };
    let rows = models.iter().map(row);
    let rows: Vec<_> = rows.chain(unfinished.iter().map(unfinished_row)).collect();
    output::text(&output::table(&["name", "size", "changed"], 1, &rows))?;
    if let Some(model) = unfinished.iter().find(|model| !model.is_running) {
        let name = &model.name;
        output::note(&format!(
            "unfinished: triad pull {name} continues it, triad remove {name} deletes what is there"
        ));
    }
    let (count, bytes) = packages(&fetch::packages_folder()?);
    if count > 0 {
        output::note(&format!(
            "packages prepared from models: {count}, {}",
            output::bytes(bytes)
        ));
    }
    Ok(())
}

/// Returns the time since `time` in its largest unit.
fn age(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    let units = [("day", 86_400), ("hour", 3600), ("minute", 60)];
    match units.into_iter().find(|(_, length)| seconds >= *length) {
        Some((unit, length)) => {
            let count = seconds / length;
            format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
        }
        None => "now".into(),
    }
}

/// Returns the number of packages in a folder, and the bytes of their files.
fn packages(folder: &Path) -> (usize, u64) {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let packages: Vec<_> = entries(folder)
        .map(|entry| entry.path())
        .filter(|path| path.join("package.json").is_file())
        .collect();
    let bytes = |package: &std::path::PathBuf| {
        let files = entries(package).filter_map(|file| file.metadata().ok());
        files.map(|file| file.len()).sum::<u64>()
    };
    (packages.len(), packages.iter().map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_are_in_their_largest_unit() {
        let ago = |seconds| age(SystemTime::now() - Duration::from_secs(seconds));
        assert_eq!(ago(5), "now");
        assert_eq!(ago(70), "1 minute ago");
        assert_eq!(ago(7300), "2 hours ago");
        assert_eq!(ago(90_000), "1 day ago");
    }
}
