//! Prints the answers of a fixed conversation, one in each line. The tests of the bindings compare theirs with it.

use triad::{Constraint, GenerateOptions, Model};

const SCHEMA: &str = r#"{"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"], "additionalProperties": false}"#;

fn print(name: &str, text: &str) {
    println!("{name}: {}", text.replace('\n', "\\n"));
}

fn main() -> triad::Result<()> {
    let options = || GenerateOptions::new().temperature(0.0).max_tokens(24);
    let model = Model::open("smollm2-135m")?;
    let chat = model.chat().with_system("Answer in one sentence.");
    let mut chat = chat.with_options(options());
    let answer = chat.send("Name three colours.")?.finish()?;
    print("first turn", &answer.text);
    let pieces: Vec<_> = chat
        .send("And a fourth one?")?
        .collect::<triad::Result<_>>()?;
    print("second turn", &pieces.concat());
    print("its pieces", &pieces.join("|"));
    let form = options().constraint(Constraint::JsonSchema(SCHEMA.into()));
    let mut chat = model.chat().with_options(form);
    let answer = chat.send("Where is the Eiffel Tower?")?.finish()?;
    print("JSON", &answer.text);
    let vector = model.embed("A cat sleeps on the sofa.")?;
    let bits = vector
        .iter()
        .map(|value| format!("{:08x}", value.to_bits()));
    print("embedding", &bits.collect::<Vec<_>>().join(" "));
    Ok(())
}
