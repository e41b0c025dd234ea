//! A prepared model on disk: INT8 or INT4 weights in the layout of the kernels, the quantization plan, tokenizer and
//! template.
//!
//! ```text
//! NAME/
//!   package.json         format version, model, calibration, clip thresholds, hashes               (manifest)
//!   package.json.sha256  the hash of package.json, as sha256sum writes it
//!   weights.safetensors  the weights, which the kernels use in place                               (tensors)
//!   tokenizer.gguf       or tokenizer.json, tokenizer_config.json, chat_template.jinja
//!   vision.safetensors   the encoder of pictures, if it was prepared, too                           (vision)
//!   pictures.gguf        or config.json, preprocessor_config.json: how its pictures are prepared
//!   shadow-rows.bin      the weights that shadows read, by channel; a run writes it; can be deleted at any time
//!   compiled/            graphs that an NPU's provider compiled; can be deleted at any time
//! ```
//!
//! `package.json` names every file that is read as a part of the package. Runs write the last two and the measurements
//! (`costs.json`, `products.json`), with a [seal](triad_model::seal) of their machine.
//!
//! [`Package::open`] maps the weights and checks everything except the hashes, in milliseconds; `read` creates
//! [`Weights`](crate::weights::Weights) from them. [`Package::verify`] checks the hashes. The crate `triad-prepare`
//! writes packages. The definitions that both crates share are here: [`Manifest`], [`preparation`] and [`tensors`].

mod checks;
mod digest;
mod formats;
pub mod layers;
mod manifest;
mod names;
pub mod preparation;
mod read;
mod read_vision;
mod stream_names;
mod tensor_file;
pub mod tensors;
pub mod vision;

use std::io::Read;
use std::path::{Path, PathBuf};

use triad_model::checkpoint::Source;
use triad_model::description::ModelDescription;
use triad_model::mapped::MappedFile;
use triad_model::{Error, ErrorKind, Result, files};

pub use digest::{FileDigest, compare, sha256};
pub use manifest::Manifest;
pub use names::{FORMAT, PLAIN_FORMAT, WEIGHTS, is_content};
pub use stream_names::StreamNames;
use tensor_file::TensorFile;
use tensors::Formats;

/// The file that makes a folder a package.
pub const MANIFEST: &str = "package.json";
/// The file with the hash of [`MANIFEST`], as sha256sum writes it.
pub const MANIFEST_DIGEST: &str = "package.json.sha256";
/// A hash, two spaces and a name fit; further bytes are not read.
const MAX_DIGEST_BYTES: u64 = 1 << 10;
/// Files and folders that runs create in the package's folder on their machine. They are sealed, and are not a part of
/// the package.
const MADE_HERE: [&str; 4] = [COMPILED, SHADOW_ROWS, COSTS, PRODUCTS];
/// The file with the measured costs of subgraphs.
pub const COSTS: &str = "costs.json";
/// The file with the measured costs of gemms.
pub const PRODUCTS: &str = "products.json";
/// The folder of compiled graphs.
const COMPILED: &str = "compiled";
/// The file of [`outlier_cache`](crate::outlier_cache).
const SHADOW_ROWS: &str = "shadow-rows.bin";

/// The entries of a package's folder, by how they are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files of the package, which [`Package::verify`] compares with their hashes.
    pub hashed: Vec<String>,
    /// Files that runs wrote; runs check their seals when they read them.
    pub made_here: Vec<String>,
    /// Entries that are not a part of the package and are never read.
    pub others: Vec<String>,
}

/// An opened package. It is checked, and its weights are mapped and not read, until [`Package::read_into_huge_pages`].
#[derive(Debug)]
pub struct Package {
    path: PathBuf,
    manifest: Manifest,
    formats: Formats,
    weights: TensorFile,
    vision: Option<TensorFile>,
}

impl Package {
    /// Returns whether the folder at `path` should be a package.
    pub fn is_at(path: &Path) -> bool {
        path.join(MANIFEST).exists()
    }

    /// Returns the name of an entry of the folder at `path` that no package has, if there is one. Returns
    /// `package.json` if that is the only entry.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn foreign(path: &Path) -> std::io::Result<Option<String>> {
        let mut has_more = false;
        let has_encoder = path.join(vision::WEIGHTS).exists();
        for entry in std::fs::read_dir(path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let made = name.strip_suffix(".seal").unwrap_or(&name);
            let is_part = [MANIFEST, MANIFEST_DIGEST].contains(&&*name)
                || is_content(&name) && (has_encoder || !vision::FILES.contains(&&*name))
                || MADE_HERE.contains(&made);
            if !is_part {
                return Ok(Some(name));
            }
            has_more |= name != MANIFEST;
        }
        Ok((!has_more).then(|| MANIFEST.to_owned()))
    }

    /// Opens the package at `path`. Checks everything that is used later, except for hashes.
    ///
    /// # Errors
    /// If a file is missing, truncated or not what its name says; if a newer Triad made the package, or kernels with
    /// another layout. The error names file and field.
    pub fn open(path: &Path) -> Result<Self> {
        let manifest_path = path.join(MANIFEST);
        if !manifest_path.exists() {
            let message = format!("not a package: there is no {MANIFEST}");
            return Err(Error::new(ErrorKind::Missing, message).at(path));
        }
        let manifest = Manifest::read(&manifest_path)?;
        for (name, digest) in &manifest.files {
            let path = path.join(name);
            let length = std::fs::metadata(&path).map_err(|error| {
                let kind = if error.kind() == std::io::ErrorKind::NotFound {
                    ErrorKind::Missing
                } else {
                    ErrorKind::Io
                };
                Error::new(kind, format!("{MANIFEST} names this file"))
                    .caused_by(error)
                    .at(&path)
            })?;
            if !length.is_file() {
                return Err(Error::new(ErrorKind::Malformed, "expected a regular file").at(&path));
            }
            if length.len() != digest.bytes {
                let message = format!(
                    "{} bytes, {MANIFEST} has {}: truncated or altered",
                    length.len(),
                    digest.bytes
                );
                return Err(Error::new(ErrorKind::Malformed, message).at(path));
            }
        }
        refuse_unlisted(path, &manifest)?;
        let formats = manifest.formats()?;
        let entries = tensors::entries(&manifest.model, &formats)
            .map_err(|error| error.at(path.join(WEIGHTS)))?;
        let vision = match &manifest.vision {
            Some(vision) => {
                let entries = vision::entries(&vision.model, vision.element()?)?;
                Some(TensorFile::open(path.join(vision::WEIGHTS), &entries)?)
            }
            None => None,
        };
        Ok(Self {
            path: path.into(),
            weights: TensorFile::open(path.join(WEIGHTS), &entries)?,
            vision,
            formats,
            manifest,
        })
    }

    /// Returns the file with the weights, or a copy of it in memory.
    pub fn mapped_file(&self) -> &MappedFile {
        &self.weights.file
    }

    /// Returns the size of the file with the weights in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.file.bytes().len() as u64
    }

    /// Reads the weights into huge pages: [`MappedFile::in_huge_pages`].
    ///
    /// # Errors
    /// As [`MappedFile::in_huge_pages`].
    pub fn read_into_huge_pages(&mut self) -> Result<()> {
        self.weights.file = self.weights.file.in_huge_pages()?;
        Ok(())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder for graphs that are compiled for a device, in the package at `path`. It is created with the
    /// first graph. Readers check seals; [`Package::verify`] does not check it.
    pub fn compiled(path: &Path) -> PathBuf {
        path.join(COMPILED)
    }

    /// Returns the path of the rows that shadows read ([`ChannelRows`](crate::outlier_cache::ChannelRows)), which exists if
    /// a run needed them. Readers check seals; [`Package::verify`] does not check it.
    pub fn shadow_rows(path: &Path) -> PathBuf {
        path.join(SHADOW_ROWS)
    }

    /// Returns the content of `package.json`.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the description of the model.
    pub fn description(&self) -> &ModelDescription {
        &self.manifest.model
    }

    /// Opens the source of tokenizer and chat template.
    ///
    /// # Errors
    /// If one of their files cannot be read or is not what its name says, or `package.json` does not name it.
    pub fn source(&self) -> Result<Source> {
        refuse_unlisted(&self.path, &self.manifest)?;
        Source::open_text(&self.path)
    }

    /// Returns the names of the entries of the folder, ascending.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn contents(&self) -> Result<Contents> {
        let failed = |error| {
            Error::new(ErrorKind::Io, "cannot read the folder")
                .caused_by(error)
                .at(&self.path)
        };
        let mut contents = Contents::default();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let name = entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            let made = name.strip_suffix(".seal").unwrap_or(&name);
            let kind = if [MANIFEST, MANIFEST_DIGEST].contains(&&*name)
                || self.manifest.files.contains_key(&name)
            {
                &mut contents.hashed
            } else if MADE_HERE.contains(&made) {
                &mut contents.made_here
            } else {
                &mut contents.others
            };
            kind.push(name);
        }
        for names in [
            &mut contents.hashed,
            &mut contents.made_here,
            &mut contents.others,
        ] {
            names.sort();
        }
        Ok(contents)
    }

    /// Returns the bytes of all files except `package.json`.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.values().map(|file| file.bytes).sum()
    }

    /// Compares every file with its hash.
    ///
    /// # Errors
    /// If a file differs; the error names the first one.
    pub fn verify(&self) -> Result<()> {
        self.digests()?
            .iter()
            .try_for_each(|(path, sha256)| digest::check(path, sha256))
    }

    /// Returns every file that has a hash, with its expected hash: `package.json` first, then the files that it names.
    ///
    /// # Errors
    /// If the hash of `package.json` cannot be read.
    pub fn digests(&self) -> Result<Vec<(PathBuf, String)>> {
        let manifest = self.path.join(MANIFEST);
        let stated = self.path.join(MANIFEST_DIGEST);
        let mut line = String::new();
        files::open(&stated)
            .and_then(|file| file.take(MAX_DIGEST_BYTES).read_to_string(&mut line))
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot read the file")
                    .caused_by(error)
                    .at(&stated)
            })?;
        let digest = line.split_whitespace().next().unwrap_or_default();
        if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let message = format!("not the sha256 of {MANIFEST}: expected 64 hexadecimal digits");
            return Err(Error::new(ErrorKind::Malformed, message).at(&stated));
        }
        let files = self
            .manifest
            .files
            .iter()
            .map(|(name, file)| (self.path.join(name), file.sha256.clone()));
        Ok([(manifest, digest.to_owned())]
            .into_iter()
            .chain(files)
            .collect())
    }
}

/// Returns an error if there is a file that would be read as a part of the package and has no hash in its manifest.
fn refuse_unlisted(path: &Path, manifest: &Manifest) -> Result<()> {
    // Settings of pictures are read only with an encoder.
    let of_pictures = manifest.vision.is_some().then_some(&vision::FILES);
    let unlisted = Source::TEXT_FILES
        .iter()
        .chain(of_pictures.into_iter().flatten())
        .filter(|name| !manifest.files.contains_key(**name));
    match unlisted
        .map(|name| path.join(name))
        .find(|path| path.symlink_metadata().is_ok())
    {
        Some(path) => {
            let message = format!(
                "no part of the package: {MANIFEST} does not name this file; expected none, remove it"
            );
            Err(Error::new(ErrorKind::Malformed, message).at(path))
        }
        None => Ok(()),
    }
}
