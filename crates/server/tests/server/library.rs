//! `/api/pull` and `/api/delete` on a server whose clients may change models.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use triad_engine::Engine;
use triad_model::fetch::Progress;
use triad_server::{
    Deletion, HostedModel, LibraryError, LoadedModel, ModelFacts, ModelLibrary, ServerOptions,
    StartError, repository,
};

use crate::support::{NAME, Reply, Server, delete, engine, post};

const BEFORE: &str = "hf:here/before";
const NEW: &str = "hf:here/new";
const SLOW: &str = "hf:here/slow";
const LARGE: &str = "hf:here/large";
/// A model that another program fetches.
const BUSY: &str = "hf:here/busy";
/// A file of the repository of a given model.
const NEXT_TO_GIVEN: &str = "hf:here/given:other.gguf";

/// Models whose files are only names.
pub struct Library {
    engine: Engine,
    files: Arc<Mutex<BTreeSet<String>>>,
    cancelled: AtomicUsize,
    /// Loads end while this is not locked.
    loads: Arc<Mutex<()>>,
    /// The number of loads.
    loaded: Arc<AtomicUsize>,
    /// The version of all files.
    version: Arc<AtomicUsize>,
}

impl Library {
    pub fn new(engine: &Engine) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            files: Arc::new(Mutex::new([BEFORE.to_owned()].into())),
            cancelled: AtomicUsize::new(0),
            loads: Arc::default(),
            loaded: Arc::default(),
            version: Arc::default(),
        })
    }

    fn model(&self, name: &str) -> HostedModel {
        let (engine, loads) = (self.engine.clone(), Arc::clone(&self.loads));
        let (loaded, version) = (Arc::clone(&self.loaded), Arc::clone(&self.version));
        HostedModel {
            name: name.into(),
            aliases: Vec::new(),
            bytes: if name == LARGE { 1 << 60 } else { 0 },
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(move || {
                let _end = loads.lock().unwrap();
                loaded.fetch_add(1, Ordering::Relaxed);
                let (now, version) = (version.load(Ordering::Relaxed), Arc::clone(&version));
                Ok(LoadedModel {
                    engine: engine.clone(),
                    adapters: Vec::new(),
                    is_current: Box::new(move || version.load(Ordering::Relaxed) == now),
                })
            }),
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl ModelLibrary for Library {
    fn models(&self, of: Option<&str>) -> Vec<HostedModel> {
        let files = self.files.lock().unwrap();
        let files = files
            .iter()
            .filter(|name| of.is_none_or(|of| repository(name) == of));
        files.map(|name| self.model(name)).collect()
    }

    fn pull(
        &self,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<Option<HostedModel>, LibraryError> {
        progress.step("asking for the files");
        match name {
            NEW | LARGE | SLOW => {}
            "hf:here/full" => {
                return Err(LibraryError::Failed("/secret/folder is full".into()));
            }
            "hf:here/wrong" => {
                return Err(LibraryError::Hub("another hash is expected".into()));
            }
            "hf:here/huge" => {
                return Err(LibraryError::Full("9 bytes are missing".into()));
            }
            _ => return Err(LibraryError::Refused("there is no such repository".into())),
        }
        progress.bytes("model.gguf", 1, Some(3));
        if name == SLOW {
            while !progress.cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.cancelled.fetch_add(1, Ordering::Relaxed);
            return Err(LibraryError::Refused("the fetch was cancelled".into()));
        }
        progress.bytes("model.gguf", 2, Some(3));
        progress.bytes("model.gguf", 3, Some(3));
        self.files.lock().unwrap().insert(name.into());
        Ok(Some(self.model(name)))
    }

    fn is_given(&self, name: &str) -> Result<bool, LibraryError> {
        Ok(name == "hf:here/given")
    }

    fn check_change(&self, name: &str) -> Result<(), LibraryError> {
        match repository(name) {
            "hf:here/given" => Err(LibraryError::Given),
            _ => Ok(()),
        }
    }

    fn delete(&self, name: &str, progress: &dyn Progress) -> Result<Deletion, LibraryError> {
        if name == BUSY && progress.cancelled() {
            return Err(LibraryError::Missing("it waits".into()));
        }
        let is_meant = |file: &&String| *file == name || repository(file) == name;
        let files = self.files.lock().unwrap();
        let names: Vec<_> = files.iter().filter(is_meant).cloned().collect();
        if names.is_empty() {
            return Err(LibraryError::Missing(format!("there is no model {name}")));
        }
        let (files, own) = (Arc::clone(&self.files), names.clone());
        Ok(Deletion {
            names,
            end: Box::new(move || {
                files.lock().unwrap().retain(|file| !own.contains(file));
                Ok(())
            }),
        })
    }
}

fn server() -> (Server, Arc<Library>) {
    server_with(&[])
}

/// Starts a server whose library also has these files.
fn server_with(files: &[&str]) -> (Server, Arc<Library>) {
    let (engine, folder) = engine(None);
    let library = Library::new(&engine);
    let files = files.iter().map(|name| (*name).to_owned());
    library.files.lock().unwrap().extend(files);
    let own = Arc::clone(&library) as Arc<dyn ModelLibrary>;
    let first = library.model(NAME);
    let change = |options: &mut ServerOptions| {
        options.library = Some(own);
        options.model_bytes = 1 << 40;
    };
    (
        Server::with_models((engine, folder), vec![first], change),
        library,
    )
}

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let lines = reply.body.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the names of all models, and of those that clients may delete.
fn names(server: &Server) -> (Vec<String>, Vec<String>) {
    let tags = server.get("/api/tags").good();
    let tags = tags["models"].as_array().unwrap();
    let name = |tag: &Value| tag["name"].as_str().unwrap().to_owned();
    let deletable = tags.iter().filter(|tag| tag["deletable"] == true);
    (
        tags.iter().map(name).collect(),
        deletable.map(name).collect(),
    )
}

fn deleted(server: &Server, name: &str) -> Reply {
    server.send(&delete("/api/delete", &json!({"model": name}).to_string()))
}

#[test]
fn a_pulled_model_is_served_until_it_is_deleted() {
    let (server, library) = server();
    assert_eq!(server.get("/props").good()["allows_pull"], true);
    assert_eq!(
        names(&server),
        (vec![NAME.into(), BEFORE.into()], vec![BEFORE.into()])
    );
    let ask = || server.post("/tokenize", &json!({"model": NEW, "content": "a"}));
    assert_eq!(ask().status, 404);
    let pulled = lines(&server.post("/api/pull", &json!({"model": NEW})));
    assert_eq!(pulled[0], json!({"status": "asking for the files"}));
    let file = &pulled[1];
    assert_eq!(
        (&file["status"], &file["completed"], &file["total"]),
        (&json!("pulling model.gguf"), &json!(1), &json!(3))
    );
    // Ollama's own command shows letters 7 to 19.
    assert_eq!(file["digest"].as_str().unwrap().len(), 71);
    // Lines in between are left out, the last one of a file is not.
    assert_eq!(pulled[2]["completed"], 3);
    assert_eq!(pulled[3..], [json!({"status": "success"})]);
    ask().good();
    assert_eq!(names(&server).1, [BEFORE, NEW]);
    assert_eq!(server.get("/api/ps").good()["models"][1]["name"], NEW);
    assert_eq!(deleted(&server, NEW).status, 200);
    assert_eq!(ask().status, 404);
    assert_eq!(names(&server).1, [BEFORE]);
    assert!(!library.files.lock().unwrap().contains(NEW));
    assert_eq!(deleted(&server, NEW).status, 404);
    // Again, without a stream.
    let whole = json!({"name": NEW, "stream": false});
    assert_eq!(
        server.post("/api/pull", &whole).good(),
        json!({"status": "success"})
    );
    ask().good();
}

#[test]
fn a_pull_that_fails_says_why() {
    let (server, _) = server();
    let pull = |name: &str| {
        let whole = server.post("/api/pull", &json!({"model": name, "stream": false}));
        let streamed = lines(&server.post("/api/pull", &json!({"model": name})));
        let last = streamed.last().unwrap()["error"].clone();
        (whole.status, last.as_str().unwrap().to_owned())
    };
    assert_eq!(
        pull("hf:here/none"),
        (400, "there is no such repository".into())
    );
    let (status, large) = pull(LARGE);
    assert!(status == 400 && large.contains("--model-memory"), "{large}");
    // The hub and the disk are no faults of the client.
    assert_eq!(
        pull("hf:here/wrong"),
        (502, "another hash is expected".into())
    );
    assert_eq!(pull("hf:here/huge"), (507, "9 bytes are missing".into()));
    let (status, full) = pull("hf:here/full");
    assert!(status == 500 && !full.contains("secret"), "{full}");
    assert_eq!(names(&server).1, [BEFORE]);
}

#[test]
fn a_client_that_leaves_ends_its_pull() {
    let (server, library) = server();
    let begin = |name: &str| {
        let mut stream = server.connect();
        let body = json!({"model": name}).to_string();
        stream
            .write_all(post("/api/pull", &body, "").as_bytes())
            .unwrap();
        stream
    };
    let slow = begin(SLOW);
    let until = |name: &str, status: u16| {
        let found = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            deleted(&server, name).status == status
        });
        assert!(found, "{name}: expected status {status}");
    };
    // The model is being fetched.
    until(SLOW, 409);
    drop(slow);
    until(SLOW, 404);
    assert_eq!(library.cancelled.load(Ordering::Relaxed), 1);
}

#[test]
fn models_in_use_and_models_of_the_start_stay() {
    let (server, library) = server();
    for given in [NAME, "hf:here/given"] {
        let reply = deleted(&server, given);
        assert_eq!(reply.status, 403, "{reply:?}");
    }
    let pulled = lines(&server.post("/api/pull", &json!({"model": NAME})));
    assert_eq!(pulled.last().unwrap(), &json!({"status": "success"}));
    // A stream that is not read holds its model.
    let body =
        json!({"model": BEFORE, "prompt": "a", "stream": true, "options": {"num_predict": 900}});
    let mut stream = server.connect();
    let request = post("/api/generate", &body.to_string(), "");
    stream.write_all(request.as_bytes()).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 32]).unwrap();
    let reply = deleted(&server, BEFORE);
    // The answer may have ended meanwhile.
    if reply.status != 200 {
        assert_eq!(reply.status, 409, "{reply:?}");
        drop(stream);
        server.wait_until_idle();
        let gone = (0..100).any(|_| deleted(&server, BEFORE).status == 200);
        assert!(gone);
    }
    assert!(library.files.lock().unwrap().is_empty());
}

#[test]
fn the_list_says_of_each_model_whether_its_deletion_succeeds() {
    let (server, _) = server_with(&[NEXT_TO_GIVEN, NEW]);
    let pull = server.post("/api/pull", &json!({"model": NEXT_TO_GIVEN}));
    assert_eq!(pull.status, 403, "{pull:?}");
    let (all, deletable) = names(&server);
    assert!(all.iter().any(|name| name == NEXT_TO_GIVEN));
    for name in &all {
        let status = deleted(&server, name).status;
        let expected = if deletable.contains(name) { 200 } else { 403 };
        assert_eq!(status, expected, "{name}");
    }
    assert_eq!(deletable, [BEFORE, NEW]);
}

#[test]
fn a_model_has_one_name_for_chats_and_for_changes() {
    let (server, library) = server();
    let latest = format!("{NEW}:latest");
    lines(&server.post("/api/pull", &json!({"model": latest})));
    assert!(library.files.lock().unwrap().contains(NEW));
    let ask = |name: &str| server.post("/tokenize", &json!({"model": name, "content": "a"}));
    for name in [NEW, &latest] {
        ask(name).good();
    }
    assert_eq!(deleted(&server, &latest).status, 200);
    assert_eq!(names(&server).1, [BEFORE]);
    assert_eq!(ask(&latest).status, 404);
}

#[test]
fn a_refused_deletion_leaves_a_model_in_memory() {
    let (server, library) = server();
    library.files.lock().unwrap().insert(BUSY.into());
    // The library describes all models of a repository after a pull of one of them.
    let pulled = server.post("/api/pull", &json!({"model": BUSY, "stream": false}));
    assert_eq!(pulled.status, 400, "{pulled:?}");
    server
        .post("/tokenize", &json!({"model": BUSY, "content": "a"}))
        .good();
    let is_loaded = || server.get("/api/ps").good().to_string().contains(BUSY);
    assert!(is_loaded());
    server.wait_until_idle();
    let refused = deleted(&server, BUSY);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("another program fetches"));
    assert!(is_loaded());
    assert_eq!(library.loaded.load(Ordering::Relaxed), 2);
}

#[test]
fn no_name_answers_with_files_that_were_replaced() {
    let (server, library) = server();
    let ask = |name: &str| {
        let body = json!({"model": name, "content": "a"});
        server.post("/tokenize", &body).good();
        library.loaded.load(Ordering::Relaxed)
    };
    assert_eq!((ask(NAME), ask(BEFORE), ask(BEFORE)), (1, 2, 2));
    library.version.fetch_add(1, Ordering::Relaxed);
    assert_eq!((ask(BEFORE), ask(NAME), ask(BEFORE)), (3, 4, 4));
}

#[test]
fn a_given_model_is_not_fetched_by_another_of_its_names() {
    let (server, _) = server();
    let pulled = lines(&server.post("/api/pull", &json!({"model": "hf:here/given"})));
    assert_eq!(pulled.last().unwrap(), &json!({"status": "success"}));
}

#[test]
fn a_model_stays_while_it_is_loaded() {
    let (server, library) = server();
    let held = library.loads.lock().unwrap();
    let body = json!({"model": BEFORE, "content": "a"}).to_string();
    let mut stream = server.connect();
    stream
        .write_all(post("/tokenize", &body, "").as_bytes())
        .unwrap();
    // Until the load begins, nothing holds the model.
    std::thread::sleep(Duration::from_millis(500));
    let reply = deleted(&server, BEFORE);
    assert_eq!(reply.status, 409, "{reply:?}");
    drop(held);
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let gone = (0..100).any(|_| deleted(&server, BEFORE).status == 200);
    assert!(gone);
}

#[test]
fn a_repository_goes_with_its_files_and_needs_its_name() {
    let (server, library) = server();
    let files = ["hf:here/many:a.gguf", "hf:here/many:b.gguf"];
    let own = files.map(str::to_owned);
    library.files.lock().unwrap().extend(own);
    assert_eq!(deleted(&server, "hf:here/man").status, 404);
    assert_eq!(deleted(&server, "hf:here/many").status, 200);
    assert_eq!(library.files.lock().unwrap().len(), 1);
    let without = server.send(&delete("/api/delete", "{}"));
    assert!(
        without.status == 400 && without.body.contains("model: it is missing"),
        "{without:?}"
    );
    // A page of another site.
    let foreign = delete("/api/delete", &json!({"model": BEFORE}).to_string());
    let foreign = foreign.replace(
        "Content-Type: application/json",
        "Origin: http://example.org\r\nContent-Type: text/plain",
    );
    assert_eq!(server.send(&foreign).status, 415);
    assert_eq!(names(&server).1, [BEFORE]);
}

#[test]
fn others_must_not_change_the_models_of_a_key() {
    let (engine, _folder) = engine(None);
    let library = Library::new(&engine);
    let check = |change: &dyn Fn(&mut ServerOptions)| {
        let mut options = ServerOptions {
            library: Some(Arc::clone(&library) as Arc<dyn ModelLibrary>),
            ..ServerOptions::default()
        };
        change(&mut options);
        options.check()
    };
    let (one, two) = (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]);
    let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    check(&|_| {}).unwrap();
    check(&|options| (options.host, options.api_keys) = (everywhere, one.clone())).unwrap();
    check(&|options| (options.shares_prompts, options.api_keys) = (true, two.clone())).unwrap();
    check(&|options| options.cors = vec!["http://localhost:3000".to_owned()]).unwrap();
    let open: [&dyn Fn(&mut ServerOptions); 3] = [
        &|options| (options.host, options.allows_no_key) = (everywhere, true),
        &|options| options.allowed_hosts = vec!["example.org".to_owned()],
        &|options| options.cors = vec!["*".to_owned()],
    ];
    for change in open {
        assert!(matches!(check(change), Err(StartError::PullsWithoutKey)));
    }
    let separate = check(&|options| options.api_keys = two.clone());
    assert!(matches!(separate, Err(StartError::PullsOfSeparateKeys)));
}
