//! Packages of model files: made on request (`triad prepare`), or automatically when a model is run for the first time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use triad_engine::package::{self, FileDigest, Manifest, Package};
use triad_engine::{Cancel, Threads};
use triad_kernels::int8;
use triad_model::checkpoint::{Checkpoint, Source, describes_model};
use triad_model::description::ModelDescription;
use triad_model::fetch;
use triad_model::gguf::PartName;
use triad_model::{ErrorKind, files};
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::pictures::CalibrationPictures;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{Existing, Prepared, Progress, Recipe};

use crate::error::{Error, Result};
use crate::hashes::Hashes;

/// Hexadecimal digits of a key in the name of a folder: enough that no two packages of one user have the same key.
const KEY_DIGITS: usize = 16;

/// The ends of the names of the file with the error of a preparation in the background, and of an unfinished package.
const LOG: &str = ".log";
const UNFINISHED: &str = triad_prepare::package::UNFINISHED;

/// A package of a model.
#[derive(Debug)]
pub struct Found {
    /// Its path.
    pub path: PathBuf,
    /// The time of its preparation, if it was prepared now.
    pub prepared: Option<Duration>,
    /// The part of the model by which it is the model itself, which was not prepared: a mixture of experts, an encoder, or a
    /// model with parts of blocks runs as it is stored, since how much INT8 changes its answers or vectors was not measured
    /// on a published model.
    pub stored: Option<&'static str>,
}

/// Returns the package of the model at `path`: the package at `path` itself, or one in the cache; of a mixture of
/// experts, an encoder or a model with parts of blocks, the model itself. It is prepared now, with the default options,
/// if it is not in the
/// cache. `read` is as in [`cached`].
///
/// # Errors
/// As [`cached`] and [`prepare`]; if the file is damaged or holds what Triad does not run.
pub fn package_of(
    path: &Path,
    threads: Threads,
    cancel: &Cancel,
    read: &mut dyn FnMut(u64, u64),
    progress: &mut dyn FnMut(Progress),
) -> Result<Found> {
    let (checkpoint, destination) = match look_up(path, read)? {
        LookUp::Found(found) => return Ok(found),
        LookUp::Missing {
            checkpoint,
            package,
        } => (checkpoint, package),
    };
    let start = Instant::now();
    let recipe = Recipe {
        checkpoint,
        text: CalibrationText::builtin(),
        options: PrepareOptions::default(),
        threads,
        existing: Existing::Keep,
        moment_memory: triad_prepare::int4::moments::MEMORY,
        pictures: None,
    };
    let prepared = prepare(&recipe, &destination, cancel, progress)?;
    Ok(Found {
        path: destination,
        // Another process may have made it meanwhile.
        prepared: prepared.is_new.then(|| start.elapsed()),
        stored: None,
    })
}

/// The result of [`look_up`].
pub(crate) enum LookUp {
    /// The model runs from these files.
    Found(Found),
    /// The package that the model runs from is not in the cache.
    Missing {
        /// The model file.
        checkpoint: Arc<Checkpoint>,
        /// The path that the package will have.
        package: PathBuf,
    },
}

/// Finds the files that the model at `path` runs from, as [`package_of`] does, without preparing it.
///
/// # Errors
/// As [`cached`]; if the file is damaged, a pull of the model has not ended, or the file holds what Triad does not run.
pub(crate) fn look_up(path: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<LookUp> {
    let found = |path: &Path, stored| {
        LookUp::Found(Found {
            path: path.into(),
            prepared: None,
            stored,
        })
    };
    if Package::is_at(path) {
        return Ok(found(path, None));
    }
    let pulled = fetch::pulled(path)?;
    // A file that is not a model is refused before all of it is read. The cache may have a package that an earlier version
    // made of a model that now runs as it is stored.
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    if let Some(part) = not_prepared(checkpoint.description()) {
        return Ok(found(path, Some(part)));
    }
    let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
    let package = cached(path, &options, (&text, None), read)?;
    // The package would be of other files than those that its name is of.
    pulled.check()?;
    if Package::is_at(&package) {
        return Ok(found(&package, None));
    }
    Ok(LookUp::Missing {
        checkpoint,
        package,
    })
}

/// Returns the part by which a model is not prepared.
fn not_prepared(model: &ModelDescription) -> Option<&'static str> {
    let head = model.head.is_some().then_some("has layers after pooling");
    model.only_for_one_cpu().or(head)
}

/// Returns the path of a model's package in the cache. The path depends on the content of the model's files and on the
/// options of the preparation, not on the location or age of the files: a copy of the model finds the same package, and
/// so does the model in a copy of the cache. With `pictures`, it depends on them and on the encoder, too. `read` is called with the bytes read so far and the bytes to read in
/// total, of files that changed since they were last read.
///
/// # Errors
/// If the files cannot be read, or there is no folder for packages.
pub fn cached(
    path: &Path,
    options: &PrepareOptions,
    calibration: (&CalibrationText, Option<&CalibrationPictures>),
    read: &mut dyn FnMut(u64, u64),
) -> Result<PathBuf> {
    cached_in(
        &fetch::packages_folder()?,
        &mut Hashes::open(path),
        path,
        options,
        calibration,
        read,
    )
}

fn cached_in(
    folder: &Path,
    hashes: &mut Hashes,
    path: &Path,
    options: &PrepareOptions,
    calibration: (&CalibrationText, Option<&CalibrationPictures>),
    read: &mut dyn FnMut(u64, u64),
) -> Result<PathBuf> {
    let files = model_files(path);
    let (text, pictures) = calibration;
    let of_model = hashes.of_files(&files, read)?;
    let file_name = |file: &PathBuf| {
        file.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    // The files of a folder are told apart by their names. A single file may have any name.
    let files: Vec<_> = match &of_model[..] {
        [single] => vec![(String::new(), single.clone())],
        _ => {
            let hashes = of_model.iter().cloned();
            files.iter().map(file_name).zip(hashes).collect()
        }
    };
    let mut key = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "format": package::FORMAT,
        "layout": int8::LAYOUT,
        "files": files,
        "options": options,
        "text": package::sha256(json!(text.texts).to_string().as_bytes()),
    });
    if let Some(pictures) = pictures {
        let mut files = model_files(&pictures.encoder);
        files.extend(pictures.settings());
        files.sort();
        files.dedup();
        files.extend(pictures.files.iter().cloned());
        key["pictures"] = json!(hashes.of_files(&files, read)?);
    }
    let key = &package::sha256(key.to_string().as_bytes())[..KEY_DIGITS];
    // A copy of the model may have had another name when its package was made.
    let end = format!("-{key}");
    let made = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let is_made =
        |place: &PathBuf| place.to_string_lossy().ends_with(&end) && Package::is_at(place);
    if let Some(made) = made.filter(is_made).min() {
        check_source(&made, &of_model)?;
        return Ok(made);
    }
    let path = path
        .canonicalize()
        .map_err(|source| file("read", path, source))?;
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    let name = name
        .unwrap_or_default()
        .to_string_lossy()
        .replace(|letter: char| !is_plain(letter), "-");
    Ok(folder.join(name + &end))
}

/// Maximum bytes of a `package.json` whose source is checked.
const MAX_MANIFEST_BYTES: u64 = 1 << 28;

/// Checks that the package at `path` was made from files with the hashes `of_model`: its folder's name says so, and names
/// can be changed. A package that cannot be read is refused when it is opened.
fn check_source(path: &Path, of_model: &[String]) -> Result<()> {
    let manifest = files::read(&path.join(package::MANIFEST), MAX_MANIFEST_BYTES);
    let Some(manifest) = manifest.ok().and_then(|it| Manifest::parse(&it).ok()) else {
        return Ok(());
    };
    let is_of_model = |file: &FileDigest| of_model.contains(&file.sha256);
    if !manifest.source.is_empty() && manifest.source.values().all(is_of_model) {
        return Ok(());
    }
    let names: Vec<_> = manifest.source.keys().cloned().collect();
    let message = format!(
        "the package of another model ({}) under the name of this model's package: remove this folder",
        names.join(", ")
    );
    Err(triad_model::Error::new(ErrorKind::Malformed, message)
        .at(path)
        .into())
}

/// Returns the files of the model at `path`, sorted. If `path` is a file, these are the file and the files next to it
/// that describe it. If it is a folder, other files in it, such as the output of an earlier command, are left out.
pub fn model_files(path: &Path) -> Vec<PathBuf> {
    const PACKAGE: [&str; 2] = [package::MANIFEST, package::MANIFEST_DIGEST];
    const WEIGHTS: [&str; 3] = [".safetensors", ".safetensors.index.json", ".gguf"];
    let describes = |name: &str| {
        PACKAGE.contains(&name) || Source::TEXT_FILES.contains(&name) || describes_model(name)
    };
    let holds_weights = |name: &str| {
        WEIGHTS
            .iter()
            .any(|end| name.to_ascii_lowercase().ends_with(end))
    };
    let entries = |folder: &Path| -> Vec<(PathBuf, String)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let named =
            entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)));
        named.collect()
    };
    let within = |folder: &Path, belongs: &dyn Fn(&str) -> bool| -> Vec<_> {
        let mut files = Vec::new();
        for (path, name) in entries(folder) {
            if path.is_file() && belongs(&name) {
                files.push(path);
            } else if holds_descriptions(&name) && path.is_dir() {
                let inside = entries(&path).into_iter();
                let inside = inside.filter(|(path, file)| {
                    describes_model(&format!("{name}/{file}")) && path.is_file()
                });
                files.extend(inside.map(|(path, _)| path));
            }
        }
        files
    };
    // Only the name has to be text: its folder may have any.
    let name = path.file_name().and_then(|name| name.to_str());
    let mut files = if path.is_dir() {
        within(path, &|name| describes(name) || holds_weights(name))
    } else if path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
    {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let mut files = within(folder, &describes);
        files.push(path.into());
        files
    } else if let Some(part) = name.and_then(PartName::parse) {
        part.all().map(|name| path.with_file_name(name)).collect()
    } else {
        vec![path.into()]
    };
    files.sort();
    files
}

/// Returns whether a folder of this name in a model's folder may hold files that describe the model.
fn holds_descriptions(folder: &str) -> bool {
    let files = ["config.json", "tool_use.jinja"];
    files
        .iter()
        .any(|file| describes_model(&format!("{folder}/{file}")))
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_')
}

/// Prepares a model. Creates the parent of the package's folder if it does not exist.
///
/// # Errors
/// If that folder cannot be created; as [`triad_prepare::package::prepare`]. After a preparation was cancelled, the
/// next one continues where it ended.
pub fn prepare(
    recipe: &Recipe,
    destination: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    if let Some(parent) = destination.parent() {
        fs::create_dir_all(parent).map_err(|source| file("create", parent, source))?;
    }
    let prepared = triad_prepare::package::prepare(recipe, destination, cancel, progress)?;
    // The error of an earlier preparation in the background no longer holds.
    let _ = fs::remove_file(log_of(destination));
    Ok(prepared)
}

/// Returns what there is of the package at `package`, whatever name the model had: the package, folders of preparations that
/// have not ended, and files with the errors of preparations in the background.
pub fn remains_of(package: &Path) -> Vec<PathBuf> {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let key = &name[name.rfind('-').unwrap_or(0)..];
    let ends = ["", UNFINISHED, LOG].map(|end| format!("{key}{end}"));
    let is_of_package = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ends.iter().any(|end| name.ends_with(&**end))
    };
    let entries = package
        .parent()
        .and_then(|folder| fs::read_dir(folder).ok());
    let paths = entries.into_iter().flatten().flatten();
    let paths = paths.map(|entry| entry.path()).filter(is_of_package);
    paths.collect()
}

/// Returns the path of the file that a preparation in the background writes its error to.
pub(crate) fn log_of(package: &Path) -> PathBuf {
    let mut name = package.file_name().unwrap_or_default().to_owned();
    name.push(LOG);
    package.with_file_name(name)
}

fn file(what: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File {
        what,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::testing::tiny_llama;
    use triad_prepare::Prune;

    #[test]
    fn a_package_depends_on_every_file_that_the_model_is_read_from() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let parts = [1, 2].map(|part| at(&format!("m-0000{part}-of-00002.gguf")));
        assert_eq!(model_files(&parts[0]), parts);
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let odd = Path::new(std::ffi::OsStr::from_bytes(b"odd\xff"));
            let named = |part: &PathBuf| odd.join(part.file_name().unwrap());
            assert_eq!(model_files(&named(&parts[0])), parts.each_ref().map(named));
        }
        let names = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "3_LogitScore/config.json",
            "added_tokens.json",
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "chat_template.tool_use.jinja",
            "config.json",
            "model.safetensors",
            "preprocessor_config.json",
            "processor_config.json",
            "special_tokens_map.json",
            "tokenizer.model",
        ];
        for name in names
            .iter()
            .chain(&["README.md", "2_Dense/README.md", "a/config.json"])
        {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "").unwrap();
        }
        let all: Vec<_> = names.map(at).into();
        assert_eq!(model_files(folder.path()), all);
        assert_eq!(model_files(&at("model.safetensors")), all);
    }

    #[test]
    fn a_mixture_of_experts_and_parts_of_blocks_run_as_they_are_stored() {
        let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
        for (file, expected) in [
            ("mixtral.gguf", "is a mixture of experts"),
            ("nemotron_h.gguf", "has blocks without a feed-forward"),
            ("falcon_h1.gguf", "has blocks without a feed-forward"),
        ] {
            let path = families.join(file);
            let (threads, cancel) = (Threads::Count(1), Cancel::new());
            let found = package_of(&path, threads, &cancel, &mut |_, _| {}, &mut |_| {}).unwrap();
            assert_eq!(found.stored, Some(expected), "{file}");
            assert!(found.prepared.is_none());
            assert_eq!(found.path, path);
        }
    }

    #[test]
    fn an_encoder_runs_as_it_is_stored() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../../tests/golden/encoders/bert-dense");
        let (threads, cancel) = (Threads::Count(1), Cancel::new());
        let found = package_of(&path, threads, &cancel, &mut |_, _| {}, &mut |_| {}).unwrap();
        assert_eq!(found.stored, Some("is an encoder"));
        assert_eq!(found.path, path);
    }

    #[test]
    fn each_model_and_each_way_to_prepare_it_has_a_package_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("packages");
        let cached = |path: &Path, options: &PrepareOptions, text: &CalibrationText| {
            let mut hashes = Hashes::kept_in(Some(folder.path().join("hashes")), path);
            let calibration = (text, None);
            cached_in(
                &packages,
                &mut hashes,
                path,
                options,
                calibration,
                &mut |_, _| {},
            )
        };
        let path = folder.path().join("model.gguf");
        fs::write(&path, tiny_llama().build()).unwrap();
        let (usual, text) = (PrepareOptions::default(), CalibrationText::builtin());
        let first = cached(&path, &usual, &text).unwrap();
        assert_eq!(cached(&path, &usual, &text).unwrap(), first);
        assert!(
            first
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("model-"),
            "{}",
            first.display()
        );
        let options = PrepareOptions {
            prune: Prune::PAPER,
            ..usual
        };
        assert_ne!(cached(&path, &options, &text).unwrap(), first);
        let other = CalibrationText {
            name: "other".into(),
            texts: vec!["abc".into()],
        };
        assert_ne!(cached(&path, &usual, &other).unwrap(), first);
        // A copy of the model finds the package that was made meanwhile.
        let copy = folder.path().join("copy.gguf");
        fs::copy(&path, &copy).unwrap();
        fs::create_dir_all(&first).unwrap();
        fs::write(first.join(package::MANIFEST), "{}").unwrap();
        assert_eq!(cached(&copy, &usual, &text).unwrap(), first);
        let mut model = fs::read(&path).unwrap();
        *model.last_mut().unwrap() ^= 1;
        fs::write(&path, model).unwrap();
        assert_ne!(
            cached(&path, &usual, &text).unwrap(),
            first,
            "another model at the same place"
        );
        let error = cached(&folder.path().join("none"), &usual, &text).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot read ") && error.to_string().ends_with("none"),
            "{error}"
        );
        assert!(
            std::error::Error::source(&error).is_some(),
            "an error keeps its source"
        );
    }
}
