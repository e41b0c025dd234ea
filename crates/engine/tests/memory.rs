//! The memory that is predicted before a model is loaded is the memory that it uses. Results from a model file that is
//! truncated while it is mapped are not returned.

use std::path::Path;
use std::sync::Arc;

use triad_engine::{Cancel, Error, LoadOptions, Model, Session, SessionOptions, Threads, memory};
use triad_model::checkpoint::Checkpoint;

#[test]
fn weights_take_what_was_predicted_before_they_were_loaded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    for model in [
        "llama",
        "llama.gguf",
        "gemma2.gguf",
        "phi2",
        "phi3",
        "qwen3.gguf",
    ] {
        let path = folder.join(model);
        let predicted = memory::of_weights(&Checkpoint::open(&path).unwrap());
        let loaded = Model::load(
            &path,
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap();
        assert_eq!(predicted, loaded.weights().bytes(), "{model}");
    }
}

#[test]
#[cfg(unix)]
fn nothing_is_computed_with_a_model_file_that_is_truncated_while_it_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families/llama.gguf");
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..Default::default()
    };
    let whole = std::fs::read(golden).unwrap();
    for left in [0, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole).unwrap();
        let model = Arc::new(Model::load(&path, &options).unwrap());
        let mut session = Session::new(
            &model,
            &SessionOptions {
                context: 64,
                ..Default::default()
            },
        )
        .unwrap();
        session.prefill(&[1, 2, 3], &Cancel::new(), |_| {}).unwrap();
        session.decode(4, &Cancel::new()).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(left as u64)
            .unwrap();
        let refused = |result: Result<(), Error>| {
            let Err(Error::Changed(error)) = result else {
                panic!("{left} bytes: {result:?}")
            };
            assert_eq!(error.path(), Some(path.as_path()));
        };
        refused(session.decode(5, &Cancel::new()).map(|_| ()));
        refused(session.save(&folder.path().join("session")));
        let mut session = Session::new(
            &model,
            &SessionOptions {
                context: 64,
                ..Default::default()
            },
        )
        .unwrap();
        refused(
            session
                .prefill(&[1, 2, 3], &Cancel::new(), |_| {})
                .map(|_| ()),
        );
        refused(session.hidden_states(&[1, 2, 3], &Cancel::new(), |_| panic!("given out")));
        let branch = triad_engine::Branch {
            tokens: &[1, 2, 3],
            scored_from: 1,
        };
        refused(session.score(&[branch], &Cancel::new(), |_| {}).map(|_| ()));
    }
}
