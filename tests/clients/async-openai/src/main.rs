//! The crate `async-openai`, unmodified, with a server: `async-openai-trial ATTEMPT`. Reads the client's part of an attempt as
//! JSON from standard input: the address (`base`), the key, the request (`ask`). Prints what the client got as one line of
//! JSON. `packages/crates.py` checks it.

use std::error::Error;
use std::io::Read;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::{ChatCompletionMessageToolCalls, CreateChatCompletionRequest};
use async_openai::types::embeddings::CreateEmbeddingRequest;
use async_openai::types::responses::{CreateResponse, ResponseStreamEvent};
use futures::StreamExt;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Server = Client<OpenAIConfig>;

/// Returns the text of an answer.
async fn chat(server: &Server, ask: Value) -> Result<Value> {
    let request: CreateChatCompletionRequest = serde_json::from_value(ask)?;
    let answer = server.chat().create(request).await?;
    Ok(json!(answer.choices[0].message.content))
}

/// Returns the pieces of a streamed answer.
async fn stream(server: &Server, ask: Value) -> Result<Value> {
    let request: CreateChatCompletionRequest = serde_json::from_value(ask)?;
    let mut parts = server.chat().create_stream(request).await?;
    let mut pieces = Vec::new();
    while let Some(part) = parts.next().await {
        let choices = part?.choices;
        pieces.extend(
            choices
                .into_iter()
                .filter_map(|choice| choice.delta.content),
        );
    }
    Ok(json!(pieces))
}

/// Makes the calls that the model asks for until it answers. Returns the cities of the calls, and the text.
async fn tools(server: &Server, mut ask: Value) -> Result<Value> {
    let mut cities = Vec::new();
    loop {
        let request: CreateChatCompletionRequest = serde_json::from_value(ask.clone())?;
        let answer = server.chat().create(request).await?;
        let message = &answer.choices[0].message;
        let Some(calls) = &message.tool_calls else {
            return Ok(json!({"cities": cities, "text": message.content}));
        };
        let messages = ask["messages"].as_array_mut().ok_or("no messages")?;
        messages.push(json!({"role": "assistant", "tool_calls": calls}));
        for call in calls {
            let ChatCompletionMessageToolCalls::Function(call) = call else {
                return Err("a call of no function".into());
            };
            let arguments: Value = serde_json::from_str(&call.function.arguments)?;
            let city = arguments["city"].as_str().ok_or("no city")?.to_owned();
            let result = format!("It is 21 degrees in {city}.");
            messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": result}));
            cities.push(city);
        }
    }
}

/// Returns the text of a response.
async fn response(server: &Server, ask: Value) -> Result<Value> {
    let request: CreateResponse = serde_json::from_value(ask)?;
    let response = server.responses().create(request).await?;
    Ok(json!(response.output_text()))
}

/// Returns the pieces of a streamed response.
async fn response_stream(server: &Server, ask: Value) -> Result<Value> {
    let request: CreateResponse = serde_json::from_value(ask)?;
    let mut events = server.responses().create_stream(request).await?;
    let mut pieces = Vec::new();
    while let Some(event) = events.next().await {
        if let ResponseStreamEvent::ResponseOutputTextDelta(event) = event? {
            pieces.push(event.delta);
        }
    }
    Ok(json!(pieces))
}

/// Returns the vectors of texts.
async fn embeddings(server: &Server, ask: Value) -> Result<Value> {
    let request: CreateEmbeddingRequest = serde_json::from_value(ask)?;
    let vectors = server.embeddings().create(request).await?.data;
    Ok(json!(
        vectors
            .into_iter()
            .map(|it| it.embedding)
            .collect::<Vec<_>>()
    ))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let attempt = std::env::args().nth(1).ok_or("expected an attempt")?;
    let mut given = String::new();
    std::io::stdin().read_to_string(&mut given)?;
    let mut given: Value = serde_json::from_str(&given)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config = OpenAIConfig::new().with_api_base(text(&given["base"]));
    let server = Client::with_config(config.with_api_key(text(&given["key"])));
    let ask = given["ask"].take();
    let got = match &*attempt {
        "chat" => chat(&server, ask).await?,
        "stream" => stream(&server, ask).await?,
        "tools" => tools(&server, ask).await?,
        "response" => response(&server, ask).await?,
        "response_stream" => response_stream(&server, ask).await?,
        "embeddings" => embeddings(&server, ask).await?,
        other => return Err(format!("there is no attempt {other}").into()),
    };
    println!("{got}");
    Ok(())
}
