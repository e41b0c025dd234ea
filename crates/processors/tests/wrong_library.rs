//! Files that are not ONNX Runtime. They are tested in their own process, since a process that has loaded ONNX Runtime
//! can load no other library.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use triad_processors::Error;
use triad_processors::npu::{Npu, NpuOptions, Provider};

fn refusal(library: &Path) -> Error {
    Npu::new(NpuOptions::new(library, Provider::Cpu))
        .map(|_| ())
        .expect_err("it is no ONNX Runtime")
}

/// Compiles a library from C source.
fn compiled(folder: &TempDir, name: &str, source: &str) -> PathBuf {
    let (code, library) = (
        folder.path().join(format!("{name}.c")),
        folder.path().join(name),
    );
    std::fs::write(&code, source).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&code)
        .status()
        .unwrap();
    assert!(status.success());
    library
}

#[test]
fn a_missing_library_is_an_error_with_its_path() {
    let error = refusal(Path::new("nowhere/libonnxruntime.so"));
    assert!(matches!(error, Error::LibraryMissing { .. }), "{error:?}");
    assert!(
        error.to_string().starts_with("nowhere/libonnxruntime.so: "),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libonnxruntime.so");
    std::fs::write(&text, "not a library").unwrap();
    for path in [text.as_path(), folder.path()] {
        let error = refusal(path);
        assert!(matches!(error, Error::LibraryWrong { .. }), "{error:?}");
    }
}

#[test]
fn a_library_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&compiled(
        &folder,
        "libother.so",
        "int other(void) { return 1; }",
    ));
    assert!(matches!(error, Error::LibraryWrong { .. }), "{error:?}");
    assert!(error.to_string().contains("OrtGetApiBase"), "{error}");
}

#[test]
fn an_old_version_is_an_error_with_it_and_the_oldest_that_works() {
    let folder = tempfile::tempdir().unwrap();
    let source = r#"
        struct base { const void *(*api)(unsigned); const char *(*version)(void); };
        static const void *api(unsigned version) { return 0; }
        static const char *version(void) { return "1.17.3"; }
        const struct base *OrtGetApiBase(void) { static const struct base base = { api, version }; return &base; }
    "#;
    let error = refusal(&compiled(&folder, "libold.so", source));
    assert!(matches!(error, Error::LibraryVersion { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .ends_with("is ONNX Runtime 1.17.3: install 1.24 or later"),
        "{error}"
    );
}
