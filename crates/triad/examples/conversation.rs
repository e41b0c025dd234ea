//! Prints the answers of a fixed conversation. The tests of the bindings compare theirs with it.

use triad::{GenerateOptions, Model};

fn main() -> triad::Result<()> {
    let options = GenerateOptions::new().temperature(0.0).max_tokens(24);
    let chat = Model::open("smollm2-135m")?.chat();
    let mut chat = chat
        .with_system("Answer in one sentence.")
        .with_options(options);
    for question in ["Name three colours.", "And a fourth one?"] {
        println!("{}", chat.send(question)?.finish()?.text);
    }
    Ok(())
}
