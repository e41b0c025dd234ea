//! A server whose process has little memory.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::Server;

/// An environment variable that is set in the process with the limit.
const LIMITED: &str = "TRIAD_TEST_LIMITED";

/// Runs the test again in a child process with a gigabyte of address space.
#[test]
#[cfg(target_os = "linux")]
fn where_memory_is_short_requests_wait_or_are_refused_and_the_server_stays() {
    if std::env::var_os(LIMITED).is_none() {
        let program = std::env::current_exe().unwrap();
        let name = "little_memory::where_memory_is_short_requests_wait_or_are_refused_and_the_server_stays";
        let run = format!(
            "ulimit -v 1000000 && exec {} --exact {name} --nocapture",
            program.display()
        );
        let mut limited = Command::new("/bin/sh");
        limited
            .args(["-c", &run])
            .env(LIMITED, "1")
            .env("RUST_BACKTRACE", "0")
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::null());
        let output = limited.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let server = Server::start();
    let messages = vec![json!({"role": "user", "content": "x".repeat(100)}); 4000];
    let body = json!({"messages": messages});
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                std::thread::Builder::new()
                    .stack_size(128 << 10)
                    .spawn_scoped(scope, || server.post("/apply-template", &body).status)
            })
            .collect();
        for client in clients {
            let status = client.unwrap().join().unwrap();
            assert!(matches!(status, 200 | 503), "{status}");
        }
    });
    server.post("/apply-template", &body).good();
}
