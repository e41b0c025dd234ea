//! Messages of Ollama's API as input of templates.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::messages::check_count;
use crate::pictures::{self, Source};
use crate::turns::{Role, Turns};

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Message {
    role: Role,
    content: Option<String>,
    /// Pictures in base64, for models that read them.
    images: Option<Vec<String>>,
    /// The model's reasoning before the message, for templates that use it.
    thinking: Option<String>,
    /// The tool calls of an assistant message.
    tool_calls: Option<Vec<Call>>,
    /// The name of the tool whose result this message contains, if its role is `tool`.
    tool_name: Option<String>,
    /// Alias of `tool_name`.
    name: Option<String>,
    /// The id of the call whose result this message contains.
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct Call {
    id: Option<String>,
    function: Called,
}

#[derive(Debug, Deserialize, ToSchema)]
struct Called {
    name: String,
    /// The arguments as a JSON object.
    #[schema(value_type = Option<Object>)]
    arguments: Option<Map<String, Value>>,
}

/// The calls without a result so far. A call is found in the same time however many there are.
#[derive(Default)]
struct OpenCalls {
    /// The ids of all calls, oldest first; `None` for those that have a result.
    ids: Vec<Option<String>>,
    /// The places of calls in `ids` by their id and by their name, oldest first. Those that have a result may remain.
    by_id: HashMap<String, VecDeque<usize>>,
    by_name: HashMap<String, VecDeque<usize>>,
    /// No older call is open.
    oldest: usize,
}

impl OpenCalls {
    fn add(&mut self, id: String, name: String) {
        let place = self.ids.len();
        self.by_id.entry(id.clone()).or_default().push_back(place);
        self.by_name.entry(name).or_default().push_back(place);
        self.ids.push(Some(id));
    }

    /// Returns the id of the oldest open call with this id, else with this name, else of any. It is no longer open.
    fn take(&mut self, id: Option<&str>, name: Option<&str>) -> Option<String> {
        let places = match (id, name) {
            (Some(id), _) => self.by_id.get_mut(id)?,
            (None, Some(name)) => self.by_name.get_mut(name)?,
            (None, None) => {
                let open = self
                    .ids
                    .get(self.oldest..)?
                    .iter()
                    .position(Option::is_some);
                self.oldest = open.map_or(self.ids.len(), |place| self.oldest + place);
                return self.ids.get_mut(self.oldest)?.take();
            }
        };
        let mut ids = std::iter::from_fn(|| places.pop_front());
        ids.find_map(|place| self.ids[place].take())
    }
}

/// Returns the messages as input of templates. A result without an id belongs to the oldest call of its name that has no
/// result, or to the oldest call if it has no name either.
///
/// # Errors
/// If there are no messages or too many, or one has tool calls although it is not the assistant's.
pub(crate) fn messages(given: Vec<Message>) -> ApiResult<Vec<Value>> {
    check_count("messages", given.len())?;
    let (mut turns, mut open) = (Turns::default(), OpenCalls::default());
    for (index, message) in given.into_iter().enumerate() {
        let field = format!("messages[{index}]");
        let content = match (message.content, message.role) {
            (Some(content), _) => content,
            (None, Role::Assistant | Role::Tool) => String::new(),
            (None, _) => {
                return Err(ApiError::field(
                    &format!("{field}.content"),
                    "it is missing",
                ));
            }
        };
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() && message.role != Role::Assistant {
            return Err(ApiError::field(
                &format!("{field}.tool_calls"),
                "only assistant messages may have tool calls",
            ));
        }
        let images = message.images.unwrap_or_default();
        if message.role == Role::Tool && !images.is_empty() {
            let message = "results of tools have no pictures: expected them in a user's message";
            return Err(ApiError::unsupported(&format!("{field}.images"), message));
        }
        if message.role == Role::Tool {
            let name = message.tool_name.or(message.name);
            let called = open.take(message.tool_call_id.as_deref(), name.as_deref());
            let id = message.tool_call_id.or(called);
            turns.result(&id.unwrap_or_default(), content);
            turns.set("name", name);
            continue;
        }
        turns.say(
            message.role,
            with_images(&format!("{field}."), content, images)?,
        );
        turns.set("name", message.name);
        turns.set("reasoning_content", message.thinking);
        for (place, Call { id, function }) in calls.into_iter().enumerate() {
            if function.name.is_empty() {
                let field = format!("{field}.tool_calls[{place}].function.name");
                return Err(ApiError::field(&field, "it is empty"));
            }
            // Templates of some models want ids of nine letters and digits.
            let id = id
                .filter(|id| !id.is_empty())
                .unwrap_or_else(|| format!("c{:04}{:04}", index % 10_000, place % 10_000));
            let arguments = Value::Object(function.arguments.unwrap_or_default()).to_string();
            turns.call(&id, &function.name, &arguments);
            open.add(id, function.name);
        }
    }
    Ok(turns.messages(None))
}

/// Returns the content of a message: its text, after its pictures if it has some.
/// `field` is the beginning of their names.
///
/// # Errors
/// As [`pictures::part`].
pub(super) fn with_images(field: &str, text: String, images: Vec<String>) -> ApiResult<Value> {
    if images.is_empty() {
        return Ok(text.into());
    }
    let images = images.into_iter().enumerate();
    let parts = images.map(|(place, image)| {
        pictures::part(&format!("{field}images[{place}]"), Source::Base64(image))
    });
    let text = json!({"type": "text", "text": text});
    parts.chain([Ok(text)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: Value) -> ApiResult<Vec<Value>> {
        messages(serde_json::from_value(given).unwrap())
    }

    #[test]
    fn results_without_ids_belong_to_the_oldest_open_call_of_their_name() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let messages = read(json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call("f"), call("g"), call("f")]},
            {"role": "tool", "content": "of g", "tool_name": "g"},
            {"role": "tool", "content": "of f", "tool_name": "f"},
            {"role": "tool", "content": "of the second f"},
        ]))
        .unwrap();
        let calls = messages[1]["tool_calls"].as_array().unwrap();
        assert_eq!(calls[0]["function"]["arguments"], "{\"a\":1}");
        let ids: Vec<_> = calls.iter().map(|call| &call["id"]).collect();
        let results: Vec<_> = messages[2..].iter().map(|it| &it["tool_call_id"]).collect();
        assert_eq!(results, [ids[1], ids[0], ids[2]]);
        assert_eq!(messages[4]["name"], "f");
    }

    #[test]
    fn a_result_is_given_to_no_call_that_has_one() {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name}});
        let result = |more: Value| {
            let mut message = json!({"role": "tool", "content": ""});
            message
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            message
        };
        let calls = [
            call("a", "f"),
            call("b", "f"),
            call("b", "g"),
            call("c", "f"),
            call("d", "g"),
        ];
        let messages = read(json!([
            {"role": "assistant", "tool_calls": calls},
            result(json!({"tool_call_id": "b"})),
            result(json!({"tool_name": "f"})),
            result(json!({"tool_name": "f"})),
            result(json!({})),
            result(json!({"tool_name": "f"})),
            result(json!({})),
            result(json!({})),
        ]))
        .unwrap();
        let ids = messages[1..]
            .iter()
            .map(|it| it["tool_call_id"].as_str().unwrap());
        assert_eq!(ids.collect::<Vec<_>>(), ["b", "a", "c", "b", "", "d", ""]);
    }

    #[test]
    fn many_open_calls_are_not_searched_for_each_result() {
        // The latest calls get their results first: a search from the oldest one would take 10^9 comparisons.
        let count = 45_000;
        let mut open = OpenCalls::default();
        for place in 0..count {
            open.add(format!("call-{place:08}"), format!("name-{place:08}"));
        }
        let start = std::time::Instant::now();
        for place in (0..count).rev() {
            let (id, name) = (format!("call-{place:08}"), format!("name-{place:08}"));
            let asked = (place % 2 == 0).then_some(&*id);
            assert_eq!(open.take(asked, Some(&name)).as_deref(), Some(&*id));
        }
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }

    #[test]
    fn calls_of_others_and_missing_contents_are_refused_by_their_place() {
        let call = json!([{"function": {"name": "f"}}]);
        for (message, field) in [
            (json!({"role": "user"}), "messages[0].content"),
            (
                json!({"role": "user", "content": "", "tool_calls": call}),
                "messages[0].tool_calls",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}),
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            let error = read(json!([message])).unwrap_err();
            assert_eq!(error.detail.param.as_deref(), Some(field));
        }
    }
}
