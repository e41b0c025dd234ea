//! Responses and conversations that later requests refer to, in memory.
//!
//! Each owner has a fixed part of the memory, so that no owner's requests depend on what others keep. What was not used
//! for the longest time makes room, and everything is dropped after a [time](ServerOptions::stored_time).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::messages::MAX_MESSAGES;
use crate::options::ServerOptions;
use crate::owner::Owner;

/// Maximum number of responses and conversations of an owner.
const MAX_ENTRIES: usize = 1024;
/// Estimated memory of an item in addition to its text, in bytes.
const BYTES_PER_ITEM: usize = 1024;

/// Items of a conversation, after those of earlier responses.
#[derive(Debug)]
pub(crate) struct Items {
    earlier: Option<Arc<Self>>,
    items: Vec<Value>,
    /// The number of items with the earlier ones.
    count: usize,
    bytes: usize,
    /// The memory of all items of the owner.
    used: Arc<AtomicUsize>,
}

impl Drop for Items {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Items {
    /// Returns all items in order.
    pub(crate) fn all(&self) -> Vec<&Value> {
        let parts: Vec<_> =
            std::iter::successors(Some(self), |items| items.earlier.as_deref()).collect();
        parts
            .into_iter()
            .rev()
            .flat_map(|part| &part.items)
            .collect()
    }
}

/// A response or a conversation.
#[derive(Debug)]
struct Entry {
    id: String,
    items: Arc<Items>,
    /// The response, or the description of the conversation.
    object: Value,
    used: Instant,
}

/// The entries of an owner, the latest used last.
#[derive(Debug, Default)]
struct OfOwner {
    entries: Vec<Entry>,
    used: Arc<AtomicUsize>,
}

/// The stored responses and conversations of all owners.
#[derive(Debug)]
pub(crate) struct Store {
    owners: Mutex<HashMap<Owner, OfOwner>>,
    /// The memory of one owner.
    most_bytes: usize,
    time: Duration,
}

/// The place of a request in the store: its earlier items, and the destination of its response.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) store: Arc<Store>,
    pub(crate) owner: Owner,
    /// The items that the request continues.
    pub(crate) earlier: Option<Arc<Items>>,
    /// The items of the request.
    pub(crate) input: Vec<Value>,
    /// The conversation to which the request and its response are added.
    pub(crate) conversation: Option<String>,
    /// Whether the response is stored.
    pub(crate) stores: bool,
}

impl Store {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let mut keys: Vec<_> = options.api_keys.iter().collect();
        keys.sort_unstable();
        keys.dedup();
        let owners = if options.shares_prompts {
            1
        } else {
            keys.len().max(1)
        };
        Self {
            owners: Mutex::default(),
            most_bytes: options.stored_bytes / owners,
            time: options.stored_time,
        }
    }

    /// Creates a conversation with `items`, and returns its description.
    ///
    /// # Errors
    /// If it is larger than the memory of its owner.
    pub(crate) fn create(
        &self,
        owner: Owner,
        items: Vec<Value>,
        object: Value,
    ) -> ApiResult<Value> {
        let id = object["id"].as_str().unwrap_or_default().to_owned();
        if !self.put(owner, id, (None, items), object.clone()) {
            let message = format!("more than the {} bytes that are kept", self.most_bytes);
            return Err(ApiError::field("items", message));
        }
        Ok(object)
    }

    /// Returns the items of a response or conversation.
    pub(crate) fn items(&self, owner: Owner, id: &str) -> Option<Arc<Items>> {
        self.with(owner, |entries| {
            let entry = take(entries, id)?;
            let items = Arc::clone(&entry.items);
            entries.push(entry);
            Some(items)
        })
    }

    /// Returns a response, or the description of a conversation.
    pub(crate) fn object(&self, owner: Owner, id: &str) -> Option<Value> {
        self.with(owner, |entries| {
            let entry = entries.iter().find(|entry| entry.id == id)?;
            Some(entry.object.clone())
        })
    }

    /// Removes a response or conversation. Returns whether it was there.
    pub(crate) fn delete(&self, owner: Owner, id: &str) -> bool {
        self.with(owner, |entries| take(entries, id).is_some())
    }

    /// Returns an item by its id.
    pub(crate) fn item(&self, owner: Owner, id: &str) -> Option<Value> {
        self.with(owner, |entries| {
            let all = entries.iter().rev().flat_map(|entry| &entry.items.items);
            all.into_iter().find(|item| item["id"] == id).cloned()
        })
    }

    /// Does something with the entries of an owner that are not too old.
    fn with<T>(&self, owner: Owner, work: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
        let mut owners = self.lock();
        let entries = &mut owners.entry(owner).or_default().entries;
        entries.retain(|entry| entry.used.elapsed() < self.time);
        work(entries)
    }

    /// Stores an entry in place of those that were not used for the longest time. Returns whether there is room.
    fn put(
        &self,
        owner: Owner,
        id: String,
        (earlier, items): (Option<Arc<Items>>, Vec<Value>),
        object: Value,
    ) -> bool {
        let size = |value: &Value| 2 * value.to_string().len() + BYTES_PER_ITEM;
        let bytes = items.iter().map(size).sum::<usize>() + size(&object);
        let mut owners = self.lock();
        let of_owner = owners.entry(owner).or_default();
        drop(take(&mut of_owner.entries, &id));
        of_owner.used.fetch_add(bytes, Ordering::Relaxed);
        let count = items.len() + earlier.as_ref().map_or(0, |earlier| earlier.count);
        let items = Arc::new(Items {
            earlier,
            count,
            items,
            bytes,
            used: Arc::clone(&of_owner.used),
        });
        if bytes > self.most_bytes {
            return false;
        }
        of_owner.entries.push(Entry {
            id,
            items,
            object,
            used: Instant::now(),
        });
        // Items of a removed entry stay while later ones continue them: these are removed next.
        while of_owner.entries.len() > MAX_ENTRIES
            || (of_owner.used.load(Ordering::Relaxed) > self.most_bytes
                && !of_owner.entries.is_empty())
        {
            of_owner.entries.remove(0);
        }
        !of_owner.entries.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, OfOwner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the entry `id`, and marks it as used now.
fn take(entries: &mut Vec<Entry>, id: &str) -> Option<Entry> {
    let place = entries.iter().position(|entry| entry.id == id)?;
    let mut entry = entries.remove(place);
    entry.used = Instant::now();
    Some(entry)
}

impl Keeper {
    /// Checks the number of items of the conversation.
    ///
    /// # Errors
    /// If there are too many.
    pub(crate) fn check(&self) -> ApiResult<()> {
        let earlier = self.earlier.as_ref().map_or(0, |earlier| earlier.count);
        let count = earlier + self.input.len();
        if count > MAX_MESSAGES {
            let message =
                format!("{count} items with the earlier ones, expected at most {MAX_MESSAGES}");
            return Err(ApiError::field("input", message));
        }
        Ok(())
    }

    /// Stores a response that has ended.
    pub(crate) fn keep(&mut self, response: &Value) {
        let mut items = std::mem::take(&mut self.input);
        items.extend(response["output"].as_array().into_iter().flatten().cloned());
        if let Some(id) = &self.conversation
            && let Some((items_before, object)) = self
                .store
                .items(self.owner, id)
                .zip(self.store.object(self.owner, id))
        {
            let items = (Some(items_before), items.clone());
            self.store.put(self.owner, id.clone(), items, object);
        }
        if self.stores {
            let id = response["id"].as_str().unwrap_or_default().to_owned();
            let items = (self.earlier.take(), items);
            self.store.put(self.owner, id, items, response.clone());
        }
    }
}

/// Returns the description of a new conversation.
pub(crate) fn conversation(id: &str, created: u64, metadata: &Value) -> Value {
    json!({"id": id, "object": "conversation", "created_at": created, "metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(bytes: usize, time: Duration, keys: &[&str]) -> Store {
        Store::new(&ServerOptions {
            api_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            stored_bytes: bytes,
            stored_time: time,
            ..ServerOptions::default()
        })
    }

    fn put(store: &Store, owner: Owner, id: &str, earlier: Option<Arc<Items>>) -> bool {
        let items = vec![json!({"id": format!("item of {id}"), "text": "a".repeat(1000)})];
        store.put(owner, id.into(), (earlier, items), json!({"id": id}))
    }

    #[test]
    fn what_is_not_used_makes_room_and_an_owner_has_only_its_part() {
        let hour = Duration::from_secs(3600);
        let store = store(1 << 16, hour, &["a", "b", "b"]);
        let (first, other) = (Owner::of_key("a"), Owner::of_key("b"));
        assert!(put(&store, other, "other", None));
        for number in 0..100 {
            assert!(put(&store, first, &number.to_string(), None));
            // This one is used again and again.
            assert!(store.items(first, "0").is_some());
            let used = store.lock()[&first].used.load(Ordering::Relaxed);
            assert!(used <= 1 << 15, "{used}");
        }
        assert!(store.items(first, "1").is_none() && store.items(first, "99").is_some());
        // Others keep what they have, and see nothing of it.
        assert!(store.items(other, "other").is_some() && store.items(other, "99").is_none());
        assert!(
            store.item(first, "item of 99").is_some() && store.item(other, "item of 99").is_none()
        );
        let large = vec![json!("a".repeat(1 << 15))];
        assert!(!store.put(first, "large".into(), (None, large), json!({})));
        assert!(store.items(first, "99").is_some());
        assert!(store.delete(first, "99") && !store.delete(first, "99"));
    }

    #[test]
    fn items_of_a_removed_response_count_while_later_ones_continue_them() {
        let store = store(1 << 16, Duration::from_secs(3600), &[]);
        let owner = Owner::default();
        let mut earlier = None;
        for number in 0..100 {
            let id = number.to_string();
            put(&store, owner, &id, earlier.take());
            earlier = store.items(owner, &id);
            let used = store.lock()[&owner].used.load(Ordering::Relaxed);
            assert!(used <= (1 << 16) + (1 << 13), "{used}");
        }
        drop(earlier);
        store.lock().get_mut(&owner).unwrap().entries.clear();
        assert_eq!(store.lock()[&owner].used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_is_kept_for_longer_than_its_time() {
        let store = store(1 << 20, Duration::ZERO, &[]);
        assert!(put(&store, Owner::default(), "a", None));
        assert!(store.items(Owner::default(), "a").is_none());
    }
}
