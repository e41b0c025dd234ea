//! The input of `/v1/responses`: what a request continues, what it refers to, and its own items.
//!
//! Stored items are shared, not copied. Their number and bytes are checked before anything is made of them, and the bytes
//! count towards the client's share of the memory for bodies. If they are many, a preparing thread reads them.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use triad_engine::Cancel;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::LARGE;
use crate::error::{ApiError, ApiResult};
use crate::guard::Caller;
use crate::json_errors;
use crate::left_out;
use crate::messages::{Content, MAX_MESSAGES, check_count, lines, text};
use crate::owner::{Owner, Tenant};
use crate::prepare::Work;
use crate::served::ServedModel;
use crate::stored::{Item, Items, Keeper, Store, whole_item};
use crate::turns::{Role, Turns};

/// The prefixes of ids.
pub(crate) const CONVERSATION: &str = "conv_";
pub(crate) const RESPONSE: &str = "resp_";
/// Maximum memory of the stored items of a request, in bytes per byte that a body may have.
const STORED_PER_BODY: usize = 4;
/// The bytes of stored items whose reading takes as much memory as a byte of text.
const TEXT_PER_STORED: usize = 16;

/// The types of items of tools that OpenAI's service runs itself.
const HOSTED: [&str; 7] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "tool_search_call",
];

/// The fields of a request that concern stored items.
pub(crate) struct Given<'a> {
    /// The id of the response that the request continues.
    pub(crate) previous: Option<&'a str>,
    /// The id of the conversation to which the request is added.
    pub(crate) conversation: Option<&'a str>,
    /// Whether the response is stored.
    pub(crate) stores: bool,
    pub(crate) input: Value,
}

/// A message, reasoning, a tool call, the result of a call, or a reference to such an item.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputItem {
    /// `message`, `reasoning`, `function_call`, `function_call_output` or `item_reference`. The default is `message`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The role of a message.
    role: Option<Role>,
    content: Option<Content>,
    /// The id of a call, in the call and in its result.
    call_id: Option<String>,
    /// The called function. Its arguments, a JSON object as a string, are in `arguments`.
    name: Option<String>,
    arguments: Option<String>,
    /// The result of a call.
    output: Option<Content>,
    /// A summary of reasoning, which is used if there is no content.
    summary: Option<Content>,
    /// The item's id, which a reference needs.
    #[serde(rename = "id")]
    _id: Option<String>,
}

/// Finds what the request continues, and the items of its input.
///
/// # Errors
/// If an earlier response, a conversation or an item is not kept, or there are too many items or bytes.
pub(crate) fn keeper(app: &App, client: Caller, given: Given<'_>) -> ApiResult<Keeper> {
    let (store, owner) = (app.stored(), client.owner);
    let (field, prefix, id) = match (given.previous, given.conversation) {
        (Some(_), Some(_)) => {
            let message = "expected either this or previous_response_id, not both";
            return Err(ApiError::field("conversation", message));
        }
        (Some(id), None) => ("previous_response_id", RESPONSE, Some(id)),
        (None, id) => ("conversation", CONVERSATION, id),
    };
    let earlier = id.map(|id| {
        // The store has the ids of both.
        let items = id.starts_with(prefix).then(|| store.items(owner, id));
        items.flatten().ok_or_else(|| {
            let message = format!(
                "{id} is not kept: expected the whole conversation as input, or an id that begins with {prefix} and was \
                 used lately"
            );
            ApiError::field(field, message).with_code("not_found")
        })
    });
    let earlier = earlier.transpose()?;
    let (_, bytes) = earlier.as_ref().map_or((0, 0), |earlier| earlier.size());
    let (input, referenced) = resolved(("input", store, owner), given.input, earlier.as_deref())?;
    let bytes = bytes.saturating_add(referenced);
    let field = if referenced > 0 { "input" } else { field };
    check_bytes(app, field, bytes)?;
    let mut share = app.bodies().share(client.address);
    share.grow(bytes)?;
    Ok(Keeper {
        store: Arc::clone(store),
        owner,
        earlier,
        input,
        stored_bytes: bytes,
        _share: share,
        conversation: given.conversation.map(str::to_owned),
        stores: given.stores,
    })
}

/// Checks the memory of the items in `field`, which stand for much more text than the request has.
///
/// # Errors
/// If it is too much.
pub(crate) fn check_bytes(app: &App, field: &str, bytes: usize) -> ApiResult<()> {
    let most = app.options.body_bytes.saturating_mul(STORED_PER_BODY);
    if bytes > most {
        let message = format!(
            "the items that it stands for take {bytes} bytes of memory, expected at most {most}"
        );
        return Err(ApiError::field(field, message).with_code("conversation_too_large"));
    }
    Ok(())
}

/// Returns whether an item of an input stands for a stored item.
pub(crate) fn is_reference(item: &Value) -> bool {
    let has = |field: &str| item.get(field).is_some_and(|value| !value.is_null());
    item["type"] == "item_reference"
        || (!has("type") && has("id") && !has("role") && !has("content"))
}

/// Returns the items of the input after `earlier` ones, with stored items in place of references, and the bytes of these.
///
/// # Errors
/// If there are too many items, one is not kept, or two have the same id.
pub(crate) fn resolved(
    (field, store, owner): (&str, &Store, Owner),
    input: Value,
    earlier: Option<&Items>,
) -> ApiResult<(Vec<Arc<Item>>, usize)> {
    let items = match input {
        Value::String(text) => {
            vec![json!({"type": "message", "role": "user", "content": text})]
        }
        Value::Array(items) => items,
        _ => {
            return Err(ApiError::field(
                field,
                "expected a text or an array of items",
            ));
        }
    };
    let count = earlier.map_or(0, |earlier| earlier.size().0) + items.len();
    if count > MAX_MESSAGES {
        let message =
            format!("{count} items with the earlier ones, expected at most {MAX_MESSAGES}");
        return Err(ApiError::field(field, message));
    }
    let references = items.iter().filter(|item| is_reference(item));
    let ids: Vec<_> = references
        .map(|item| item["id"].as_str().unwrap_or_default())
        .collect();
    let mut found = store.find(owner, &ids).into_iter();
    let mut bytes = 0_usize;
    let item = |(index, item): (usize, Value)| {
        if !is_reference(&item) {
            return Ok(Item::new(whole_item(item)));
        }
        let stored = found.next().flatten().ok_or_else(|| {
            let id = item["id"].as_str().unwrap_or_default();
            let message = format!(
                "{id:?} is not kept: expected the item itself, as in the output of the earlier response"
            );
            ApiError::field(&format!("{field}[{index}].id"), message).with_code("not_found")
        })?;
        bytes = bytes.saturating_add(stored.bytes());
        Ok(stored)
    };
    let items: ApiResult<Vec<_>> = items.into_iter().enumerate().map(item).collect();
    let items = items?;
    check_ids(field, earlier, &items)?;
    Ok((items, bytes))
}

/// Refuses items of `field` with the id of one of the `earlier` ones, or of each other.
///
/// # Errors
/// If there is such an item. Clients know the error by the words of OpenAI's API.
pub(crate) fn check_ids(
    field: &str,
    earlier: Option<&Items>,
    items: &[Arc<Item>],
) -> ApiResult<()> {
    let earlier = earlier.map_or_else(Vec::new, Items::all);
    let mut ids: HashSet<_> = earlier.into_iter().filter_map(|item| item.id()).collect();
    let mut new = items.iter().filter_map(|item| item.id());
    new.find(|id| !ids.insert(id)).map_or(Ok(()), |id| {
        let message = format!(
            "Duplicate item found with id {id}. Remove duplicate items from your input and try again."
        );
        Err(ApiError::invalid(message).with_param(field))
    })
}

/// Returns the types of items of tools that a service ran, each once. Prompts do not have these items.
pub(crate) fn hosted(items: &[Arc<Item>]) -> Vec<String> {
    let mut kinds = Vec::new();
    let kind = |item: &Arc<Item>| {
        let kind = item.value()["type"].as_str().unwrap_or_default();
        HOSTED.iter().find(|hosted| **hosted == kind)
    };
    let found = items.iter().filter_map(kind);
    found.for_each(|kind| left_out::add(&mut kinds, kind));
    kinds
}

/// Returns the messages of a request if they can be read at once.
///
/// # Errors
/// If an item is invalid.
pub(crate) fn read_small(
    keeper: &Keeper,
    instructions: Option<&str>,
) -> ApiResult<Option<Vec<Value>>> {
    if keeper.stored_bytes >= LARGE {
        return Ok(None);
    }
    read((keeper.earlier.as_deref(), &keeper.input), instructions).map(Some)
}

/// Reads the messages of a request on a preparing thread, for which clients take turns.
///
/// # Errors
/// If an item is invalid, or too many requests wait.
pub(crate) async fn read_large(
    (model, client): (&Arc<ServedModel>, Tenant),
    keeper: &Keeper,
    instructions: Option<&str>,
) -> ApiResult<Vec<Value>> {
    let (earlier, input) = (keeper.earlier.clone(), keeper.input.clone());
    let instructions = instructions.map(str::to_owned);
    let work = move |_: &ServedModel, _: &Cancel| {
        read((earlier.as_deref(), &input), instructions.as_deref())
    };
    let size = Work::Text(keeper.stored_bytes / TEXT_PER_STORED);
    model.preparers().enter((model, client), size, work).await
}

/// Reads the conversation: what the request continues, and its input.
fn read(
    (earlier, input): (Option<&Items>, &[Arc<Item>]),
    instructions: Option<&str>,
) -> ApiResult<Vec<Value>> {
    let earlier = earlier.map_or_else(Vec::new, Items::all);
    check_count("input", earlier.len() + input.len())?;
    let mut turns = Turns::default();
    for item in earlier {
        // The request has no field for it.
        let field = item
            .id()
            .map_or_else(|| "input".into(), |id| format!("conversation[{id}]"));
        add(&mut turns, &field, item.value())?;
    }
    for (index, item) in input.iter().enumerate() {
        add(&mut turns, &format!("input[{index}]"), item.value())?;
    }
    Ok(turns.messages(instructions))
}

/// Adds the item in `field`.
pub(crate) fn add(turns: &mut Turns, field: &str, item: &Value) -> ApiResult<()> {
    let InputItem {
        kind,
        role,
        content,
        call_id,
        name,
        arguments,
        output,
        summary,
        _id: _,
    } = json_errors::read(field, item)?;
    let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
    match kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = role
                .filter(|role| *role != Role::Tool)
                .ok_or_else(|| missing("role"))?;
            // The assistant may only have called functions.
            let content = content.or_else(|| (role == Role::Assistant).then(Content::empty));
            let content = content.ok_or_else(|| missing("content"))?;
            turns.say(role, lines(&format!("{field}.content"), content)?);
        }
        "reasoning" => {
            let content = content.map(|content| text(&format!("{field}.content"), content));
            let summary = summary.map(|summary| text(&format!("{field}.summary"), summary));
            let content = content.transpose()?.filter(|text| !text.is_empty());
            let summary = summary.transpose()?;
            turns.think(&content.or(summary).unwrap_or_default());
        }
        "function_call" => {
            let id = call_id.ok_or_else(|| missing("call_id"))?;
            let name = name
                .filter(|name| !name.is_empty())
                .ok_or_else(|| missing("name"))?;
            turns.call(&id, &name, &arguments.ok_or_else(|| missing("arguments"))?);
        }
        "function_call_output" => {
            let id = call_id.ok_or_else(|| missing("call_id"))?;
            let output = output.ok_or_else(|| missing("output"))?;
            turns.result(&id, lines(&format!("{field}.output"), output)?);
        }
        // The assistant's next message says what came of it.
        kind if HOSTED.contains(&kind) => {}
        kind => {
            let message = format!(
                "{kind}: expected message, reasoning, function_call, function_call_output or item_reference"
            );
            return Err(ApiError::unsupported(&format!("{field}.type"), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::Bodies;
    use crate::options::ServerOptions;
    use crate::stored::conversation;

    fn store() -> Arc<Store> {
        let store = Store::new(&ServerOptions::default());
        let item = json!({"id": "a", "role": "user", "content": "x".repeat(1000)});
        let object = conversation("conv_1", 0, &Value::Null);
        let items = vec![Item::new(item)];
        store.create(Owner::default(), items, object).unwrap();
        Arc::new(store)
    }

    #[test]
    fn references_share_their_item_whose_bytes_count() {
        let store = store();
        let earlier = store.items(Owner::default(), "conv_1").unwrap();
        let resolve = |input: Value, earlier: Option<&Items>| {
            resolved(("input", &store, Owner::default()), input, earlier)
        };
        let (items, bytes) = resolve(json!([{"id": "a"}, {"role": "user"}]), None).unwrap();
        assert!(Arc::ptr_eq(&items[0], earlier.all()[0]));
        assert!(bytes == items[0].bytes() && bytes > 1000);
        let many = vec![json!({"role": "user"}); MAX_MESSAGES];
        resolve(many.clone().into(), None).unwrap();
        let error = resolve(many.into(), Some(&earlier)).unwrap_err();
        assert!(error.detail.message.contains("expected at most 4096"));
    }

    #[test]
    fn an_id_is_refused_in_the_words_of_openai_wherever_the_other_item_is() {
        let store = store();
        let earlier = store.items(Owner::default(), "conv_1").unwrap();
        let item = |id: &str| json!({"id": id, "role": "user", "content": "x"});
        for (input, earlier, id) in [
            (json!([item("a")]), Some(&*earlier), Some("a")),
            (json!([{"id": "a"}]), Some(&*earlier), Some("a")),
            (json!([item("b"), item("c"), item("b")]), None, Some("b")),
            (json!([{"id": "a"}, {"id": "a"}]), None, Some("a")),
            (json!([{"id": "a"}, item("a")]), None, Some("a")),
            (json!([item("a"), item("b")]), None, None),
            (json!([item("b"), item("c")]), Some(&*earlier), None),
            (
                json!([item(""), item(""), {"id": null, "role": "user"}]),
                None,
                None,
            ),
        ] {
            let case = format!("{input} {earlier:?}");
            let error = resolved(("input", &store, Owner::default()), input, earlier).err();
            let expected = id.map(|id| {
                format!("Duplicate item found with id {id}. Remove duplicate items from your input and try again.")
            });
            let error = error.map(|error| error.detail);
            assert_eq!(
                error.as_ref().map(|it| it.message.clone()),
                expected,
                "{case}"
            );
            let (param, code) = error.map_or((None, None), |it| (it.param, it.code));
            assert_eq!(param.as_deref(), id.map(|_| "input"), "{case}");
            assert_eq!(code, None);
        }
    }

    #[test]
    fn many_stored_bytes_are_not_read_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let bodies = Bodies::new(1 << 20, runtime.handle().clone());
        let store = store();
        let read = |stored_bytes| {
            let earlier = store.items(Owner::default(), "conv_1");
            let keeper = Keeper {
                store: Arc::clone(&store),
                owner: Owner::default(),
                earlier,
                input: Vec::new(),
                stored_bytes,
                _share: bodies.share(Tenant::of_key("a")),
                conversation: None,
                stores: true,
            };
            read_small(&keeper, None).unwrap().map(|read| read.len())
        };
        assert_eq!((read(LARGE - 1), read(LARGE)), (Some(1), None));
    }
}
