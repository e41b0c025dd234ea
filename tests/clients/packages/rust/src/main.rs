//! Tries async-openai with a server: the same as trial.py, for Rust.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use futures::StreamExt;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn tried(name: &str, result: Result<()>) {
    let error = result.err().map(|error| error.to_string());
    println!("tried: {}", json!({ "name": name, "error": error }));
}

fn holds(is_right: bool, what: impl std::fmt::Debug) -> Result<()> {
    is_right
        .then_some(())
        .ok_or_else(|| format!("{what:?}").into())
}

/// The package's own types, from JSON.
fn request<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let config = OpenAIConfig::new()
        .with_api_base(format!("{}/v1", variable("RECORDER")))
        .with_api_key(variable("KEY"));
    let client = Client::with_config(config);
    let ask = |model: &str, question: &str| {
        json!({
            "model": model, "temperature": 0.0, "max_completion_tokens": 64,
            "messages": [{ "role": "user", "content": question }],
        })
    };
    let colours = ask(&variable("MODEL"), "Name three colours.");
    let whole = chat(&client, &colours).await;
    let text = whole.as_ref().map(String::clone).unwrap_or_default();
    tried("chat", whole.map(|_| ()));
    tried("stream", stream(&client, &colours, &text).await);
    let schema = json!({
        "type": "object", "properties": { "city": { "type": "string", "enum": ["Oslo", "Rome"] } },
        "required": ["city"], "additionalProperties": false,
    });
    let weather = ask("scripted", "What is the weather in Oslo?");
    tried("tools", tools(&client, weather, &schema).await);
    let mut city = colours.clone();
    city["response_format"] = json!({
        "type": "json_schema", "json_schema": { "name": "city", "schema": schema, "strict": true },
    });
    tried("form", form(&client, &city).await);
}

async fn chat(client: &Client<OpenAIConfig>, ask: &Value) -> Result<String> {
    let answer = client.chat().create(request(ask.clone())?).await?;
    let text = answer.choices[0]
        .message
        .content
        .clone()
        .unwrap_or_default();
    holds(!text.is_empty(), &answer)?;
    Ok(text)
}

async fn stream(client: &Client<OpenAIConfig>, ask: &Value, whole: &str) -> Result<()> {
    let mut parts = client.chat().create_stream(request(ask.clone())?).await?;
    let mut pieces = Vec::new();
    while let Some(part) = parts.next().await {
        pieces.extend(
            part?
                .choices
                .into_iter()
                .filter_map(|choice| choice.delta.content),
        );
    }
    holds(
        pieces.len() > 2 && pieces.concat() == whole,
        (pieces, whole),
    )
}

async fn tools(client: &Client<OpenAIConfig>, mut ask: Value, schema: &Value) -> Result<()> {
    let function =
        json!({ "name": "weather", "description": "The weather in a city", "parameters": schema });
    ask["tools"] = json!([{ "type": "function", "function": function }]);
    let called = client.chat().create(request(ask.clone())?).await?;
    let message = serde_json::to_value(&called.choices[0].message)?;
    let call = &message["tool_calls"][0];
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or_default())?;
    holds(
        call["function"]["name"] == "weather" && arguments == json!({ "city": "Oslo" }),
        &message,
    )?;
    let messages = ask["messages"].as_array_mut().ok_or("no messages")?;
    messages.push(json!({ "role": "assistant", "tool_calls": message["tool_calls"] }));
    messages.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "It is 21 degrees in Oslo." }));
    let answer = chat(client, &ask).await?;
    holds(answer.trim() == "It is sunny in Oslo.", answer)
}

async fn form(client: &Client<OpenAIConfig>, ask: &Value) -> Result<()> {
    let city: Value = serde_json::from_str(&chat(client, ask).await?)?;
    holds(
        city == json!({ "city": "Oslo" }) || city == json!({ "city": "Rome" }),
        city,
    )
}
