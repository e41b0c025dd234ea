//! Tests of saved sessions: a restored one continues with the same bits, and other files are refused.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::testing::models::{self, MODELS, all_models};
use crate::{Error, KvFormat};

const CONTEXT: usize = 600;

fn saving(model: &Arc<Model>, context: usize, kv_format: KvFormat) -> Engine {
    let session = SessionOptions {
        context,
        chunk: 64,
        kv_format,
    };
    engine_of(model, &session)
}

fn tokens(count: usize) -> Vec<u32> {
    models::tokens(count, 0)
}

fn message(engine: &Engine, path: &Path) -> String {
    let error = engine.restore(path).err().expect("refused").to_string();
    assert!(
        error.starts_with(&format!("{}: ", path.display())),
        "{error}"
    );
    error
}

#[test]
fn a_restored_session_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for (mixers, name, model) in all_models() {
        for kv_format in [KvFormat::F16, KvFormat::F32, KvFormat::Int8] {
            for length in [0, 1, 255, 256, 257, 513] {
                let engine = saving(model, CONTEXT, kv_format);
                let mut session = engine.session();
                if length > 0 {
                    session
                        .prefill(&tokens(length), &Cancel::new(), |_| {})
                        .unwrap();
                }
                if length > 1 {
                    session.decode_each(&[1, 2, 3], &Cancel::new()).unwrap();
                }
                session.save(&path).unwrap();
                // In a new engine.
                let other = saving(model, CONTEXT, kv_format);
                let mut restored = other.restore(&path).unwrap();
                assert_eq!(restored.tokens(), session.tokens());
                assert_eq!(restored.pages(), session.pages());
                let again = folder.path().join("again");
                restored.save(&again).unwrap();
                assert!(
                    std::fs::read(&again).unwrap() == std::fs::read(&path).unwrap(),
                    "byte for byte"
                );
                for session in [&mut session, &mut restored] {
                    session
                        .prefill(&tokens(20), &Cancel::new(), |_| {})
                        .unwrap();
                }
                assert!(
                    session.logits() == restored.logits(),
                    "{mixers}, {name}, {kv_format:?}, {length}"
                );
                assert!(
                    session.decode(5, &Cancel::new()).unwrap()
                        == restored.decode(5, &Cancel::new()).unwrap()
                );
                // Decoded tokens are still not shared; those of the prompt are.
                session.share();
                restored.share();
                let indexed = |engine: &Engine| engine.usage().kv.indexed_pages;
                assert_eq!(indexed(&other), indexed(&engine));
            }
        }
    }
}

#[test]
fn a_saved_session_of_something_else_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let [(_, float), (_, int8), _, (_, w4a16)] = &*MODELS;
    let mut session = saving(int8, CONTEXT, KvFormat::F16).session();
    session
        .prefill(&tokens(300), &Cancel::new(), |_| {})
        .unwrap();
    session.save(&path).unwrap();
    let engine = saving(int8, CONTEXT, KvFormat::F16);
    engine.restore(&path).unwrap();
    for other in [float, w4a16] {
        assert!(
            message(&saving(other, CONTEXT, KvFormat::F16), &path)
                .contains("the session is of another model")
        );
    }
    let of_format = message(&saving(int8, CONTEXT, KvFormat::Int8), &path);
    assert!(
        of_format.contains("the format of keys and values: F16, expected Int8"),
        "{of_format}"
    );
    let of_context = message(&saving(int8, CONTEXT - 1, KvFormat::F16), &path);
    assert!(
        of_context.contains("the context: 600, expected 599"),
        "{of_context}"
    );
    let page = engine.usage().kv.page_bytes;
    let session = SessionOptions {
        context: CONTEXT,
        chunk: 64,
        kv_format: KvFormat::F16,
    };
    let one_page = EngineOptions {
        session,
        kv_memory: Some(page),
        ..EngineOptions::default()
    };
    let full = Engine::new(int8, &one_page)
        .unwrap()
        .restore(&path)
        .err()
        .unwrap();
    assert!(matches!(full, Error::KvMemoryFull { .. }), "{full}");
    let other = |bytes: &[u8]| {
        let path = folder.path().join("other");
        std::fs::write(&path, bytes).unwrap();
        message(&engine, &path)
    };
    let saved = std::fs::read(&path).unwrap();
    let mut version = saved.clone();
    version[7] += 1;
    assert!(
        other(&version).contains("the format's version: 2, expected 1"),
        "{}",
        other(&version)
    );
    assert!(other(b"").contains("0 bytes"));
    assert!(other(&[0; 4096]).contains("the first bytes"));
    let mut header = saved.clone();
    header[8..16].fill(0xff);
    assert!(other(&header).contains("the header's length"));
    assert!(other(&[&saved[..], &[0]].concat()).contains("it is cut off or was changed"));
    for path in [
        folder.path(),
        Path::new("/dev/zero"),
        &folder.path().join("missing"),
    ] {
        message(&engine, path);
    }
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe");
        if std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .is_ok_and(|status| status.success())
        {
            message(&engine, &pipe);
        }
    }
    assert_eq!(engine.usage().kv.bytes, 0, "what was refused holds nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_saved_session_that_is_cut_off_or_changed_is_refused(
        place in 0f64..1.0, bit in 0u32..8, kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::Int8]), near: bool,
    ) {
        static SAVED: std::sync::LazyLock<Vec<(KvFormat, Engine, Vec<u8>)>> = std::sync::LazyLock::new(|| {
            let of = |kv_format| {
                let engine = saving(&MODELS[0].1, CONTEXT, kv_format);
                let mut session = engine.session();
                session.prefill(&tokens(270), &Cancel::new(), |_| {}).unwrap();
                let file = tempfile::NamedTempFile::new().unwrap();
                session.save(file.path()).unwrap();
                drop(session);
                (kv_format, engine, std::fs::read(file.path()).unwrap())
            };
            vec![of(KvFormat::F16), of(KvFormat::Int8)]
        });
        let (_, engine, saved) = SAVED.iter().find(|(format, ..)| *format == kv_format).unwrap();
        // Often in the header.
        let place = (place * if near { 300 } else { saved.len() } as f64) as usize;
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, &saved[..place]).unwrap();
        message(engine, &path);
        let mut changed = saved.clone();
        changed[place] ^= 1 << bit;
        std::fs::write(&path, &changed).unwrap();
        message(engine, &path);
        prop_assert_eq!(engine.usage().kv.bytes, 0);
    }
}

#[test]
fn what_cannot_be_written_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = saving(&MODELS[0].1, CONTEXT, KvFormat::F16).session();
    session
        .prefill(&tokens(30), &Cancel::new(), |_| {})
        .unwrap();
    // A file cannot replace a folder, and no other file is left in the parent.
    let path = folder.path().join("folder");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("file"), "kept").unwrap();
    let error = session.save(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: ", path.display())),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "kept");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    session
        .save(&folder.path().join("missing/session"))
        .unwrap_err();
    // An older file is replaced as a whole.
    let path = folder.path().join("session");
    std::fs::write(&path, "older").unwrap();
    session.save(&path).unwrap();
    assert_eq!(
        session.engine().restore(&path).unwrap().tokens(),
        session.tokens()
    );
}
