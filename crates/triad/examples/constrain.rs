//! Answers as JSON of a schema: `cargo run --release --example constrain -p triad`

use triad::{Constraint, GenerateOptions, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema =
        r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
    let constraint = Constraint::JsonSchema(schema.into());
    let options = GenerateOptions::new().constraint(constraint).max_tokens(64);
    let mut chat = Model::open("smollm2-135m")?.chat().with_options(options);
    println!(
        "{}",
        chat.send("Where is the Eiffel Tower?")?.finish()?.text
    );
    Ok(())
}
