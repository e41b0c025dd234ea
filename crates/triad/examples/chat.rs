//! Chats: `cargo run --release --example chat -p triad -- "Why is the sky blue?"`

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1);
    let model = triad::Model::open("smollm2-135m")?;
    for piece in model.chat().send(question.as_deref().unwrap_or("Hello!"))? {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
