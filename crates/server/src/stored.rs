//! Responses and conversations that later requests refer to, in memory.
//!
//! Each owner has a fixed part of the memory, so that no owner's requests depend on what others keep. What was not used
//! for the longest time makes room, and everything is dropped after a [time](ServerOptions::stored_time).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde_json::{Value, json};

use crate::bodies::Share;
use crate::error::{ApiError, ApiResult};
use crate::names::new_id;
use crate::options::ServerOptions;
use crate::owner::Owner;

/// Maximum number of responses and conversations of an owner.
const MAX_ENTRIES: usize = 1024;
/// Estimated memory of an item in addition to its values, with its places in indexes, in bytes.
const BYTES_PER_ITEM: usize = 1024;
/// Estimated memory of a value and of an object's key in addition to their text, in bytes.
const BYTES_PER_VALUE: usize = 128;
const BYTES_PER_KEY: usize = 64;

/// An item of a conversation. All that refer to it share it.
#[derive(Debug)]
pub(crate) struct Item {
    value: Value,
    bytes: usize,
}

impl Item {
    /// Creates an item.
    pub(crate) fn new(value: Value) -> Arc<Self> {
        let bytes = BYTES_PER_ITEM + memory(&value);
        Arc::new(Self { value, bytes })
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the item's memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.value["id"].as_str()
    }
}

/// Estimates the memory of a value in bytes.
fn memory(value: &Value) -> usize {
    let inner = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(memory).sum(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let field = |(key, value): (&String, _)| BYTES_PER_KEY + key.len() + memory(value);
            fields.map(field).sum()
        }
    };
    BYTES_PER_VALUE + inner
}

/// Items of a conversation, after those of earlier responses.
#[derive(Debug)]
pub(crate) struct Items {
    earlier: Option<Arc<Self>>,
    items: Vec<Arc<Item>>,
    /// The number of items with the earlier ones, and their memory.
    size: (usize, usize),
    /// The memory that counts for the owner.
    bytes: usize,
    /// The memory of all items of the owner.
    used: Arc<AtomicUsize>,
}

impl Drop for Items {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
        // A long chain would otherwise take a part of the stack for each of its items.
        let mut earlier = self.earlier.take();
        while let Some(mut items) = earlier.and_then(Arc::into_inner) {
            earlier = items.earlier.take();
        }
    }
}

impl Items {
    /// Returns all items in order.
    pub(crate) fn all(&self) -> Vec<&Arc<Item>> {
        let parts: Vec<_> =
            std::iter::successors(Some(self), |items| items.earlier.as_deref()).collect();
        parts
            .into_iter()
            .rev()
            .flat_map(|part| &part.items)
            .collect()
    }

    /// Returns the items after those of earlier responses.
    pub(crate) fn own(&self) -> &[Arc<Item>] {
        &self.items
    }

    /// Returns the number of all items and their memory.
    pub(crate) fn size(&self) -> (usize, usize) {
        self.size
    }
}

/// The items of an entry: those that it continues, and its own.
pub(crate) type Parts = (Option<Arc<Items>>, Vec<Arc<Item>>);

/// A response or a conversation.
#[derive(Debug)]
struct Entry {
    id: String,
    items: Arc<Items>,
    /// The numbers of the first items of its parts: of what it continues of its own, and of the items after that.
    firsts: Vec<u64>,
    /// The response, or the description of the conversation, as JSON.
    object: Bytes,
    used: Instant,
}

/// The entries of an owner, the latest used last.
#[derive(Debug, Default)]
struct OfOwner {
    entries: Vec<Entry>,
    /// The items of the entries by their ids and numbers. A later item has a larger number.
    by_id: HashMap<String, BTreeMap<u64, Arc<Item>>>,
    /// The number of the next item.
    next: u64,
    used: Arc<AtomicUsize>,
}

impl OfOwner {
    /// Marks the entry `id` as used now.
    fn touch(&mut self, id: &str) -> Option<&Entry> {
        let place = self.entries.iter().position(|entry| entry.id == id)?;
        let mut entry = self.entries.remove(place);
        entry.used = Instant::now();
        self.entries.push(entry);
        self.entries.last()
    }

    /// Adds an entry, the last part of which is not in the index.
    fn push(&mut self, entry: Entry) {
        let first = entry.firsts.last().copied().unwrap_or(self.next);
        for (number, item) in (first..).zip(&entry.items.items) {
            if let Some(id) = item.id() {
                let items = self.by_id.entry(id.to_owned()).or_default();
                items.insert(number, Arc::clone(item));
            }
        }
        self.entries.push(entry);
    }

    /// Removes and returns the entries that were not used for `time`.
    fn take_old(&mut self, time: Duration) -> Vec<Entry> {
        let is_old = |entry: &&Entry| entry.used.elapsed() >= time;
        let count = self.entries.iter().take_while(is_old).count();
        let old: Vec<_> = self.entries.drain(..count).collect();
        for entry in &old {
            self.forget(entry);
        }
        old
    }

    /// Removes the entry `id`. Returns whether it was there.
    fn remove(&mut self, id: &str) -> bool {
        let entry = self.take(id);
        entry.inspect(|entry| self.forget(entry)).is_some()
    }

    fn remove_at(&mut self, place: usize) {
        let entry = self.entries.remove(place);
        self.forget(&entry);
    }

    /// Takes the entry `id`, whose items stay in the index.
    fn take(&mut self, id: &str) -> Option<Entry> {
        let place = self.entries.iter().position(|entry| entry.id == id)?;
        Some(self.entries.remove(place))
    }

    /// Removes the items of an entry from the index.
    fn forget(&mut self, entry: &Entry) {
        let parts = std::iter::successors(Some(&*entry.items), |part| part.earlier.as_deref());
        for (first, part) in entry.firsts.iter().rev().zip(parts) {
            for (number, item) in (*first..).zip(&part.items) {
                if let Some(id) = item.id()
                    && let Some(items) = self.by_id.get_mut(id)
                {
                    items.remove(&number);
                    if items.is_empty() {
                        self.by_id.remove(id);
                    }
                }
            }
        }
    }
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
    pub(crate) input: Vec<Arc<Item>>,
    /// The memory of the items that were stored before the request, and its share of the client's memory.
    pub(crate) stored_bytes: usize,
    pub(crate) _share: Share,
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
        items: Vec<Arc<Item>>,
        object: Value,
    ) -> ApiResult<Value> {
        let id = object["id"].as_str().unwrap_or_default().to_owned();
        if !self.put(owner, id, (None, items), object.to_string().into()) {
            return Err(self.too_large());
        }
        Ok(object)
    }

    /// Replaces the items and the description of a conversation by those that `change` returns. Returns the new
    /// description, or `None` if there is no such conversation.
    ///
    /// # Errors
    /// If `change` fails, or the new items are larger than the memory of the owner. The conversation is unchanged then.
    pub(crate) fn change(
        &self,
        owner: Owner,
        id: &str,
        change: impl FnOnce(&Arc<Items>, Bytes) -> ApiResult<(Parts, Bytes)>,
    ) -> ApiResult<Option<Bytes>> {
        self.with(owner, |entries| {
            let Some(entry) = entries.touch(id) else {
                return Ok(None);
            };
            let (parts, object) = change(&entry.items, entry.object.clone())?;
            if bytes(&parts.1, &object) > self.most_bytes {
                return Err(self.too_large());
            }
            self.place(entries, id.to_owned(), parts, object.clone());
            Ok(Some(object))
        })
    }

    fn too_large(&self) -> ApiError {
        let message = format!("more than the {} bytes that are kept", self.most_bytes);
        ApiError::field("items", message)
    }

    /// Returns the items of a response or conversation.
    pub(crate) fn items(&self, owner: Owner, id: &str) -> Option<Arc<Items>> {
        self.with(owner, |entries| {
            let entry = entries.touch(id)?;
            Some(Arc::clone(&entry.items))
        })
    }

    /// Returns a response, or the description of a conversation, as JSON.
    pub(crate) fn object(&self, owner: Owner, id: &str) -> Option<Bytes> {
        self.with(owner, |entries| {
            let entry = entries.touch(id)?;
            Some(entry.object.clone())
        })
    }

    /// Removes a response or conversation. Returns whether it was there.
    pub(crate) fn delete(&self, owner: Owner, id: &str) -> bool {
        self.with(owner, |entries| entries.remove(id))
    }

    /// Returns the latest item of each of the `ids`.
    pub(crate) fn find(&self, owner: Owner, ids: &[&str]) -> Vec<Option<Arc<Item>>> {
        if ids.is_empty() {
            return Vec::new();
        }
        self.with(owner, |entries| {
            let find = |id: &&str| {
                let (_, item) = entries.by_id.get(*id)?.last_key_value()?;
                Some(Arc::clone(item))
            };
            ids.iter().map(find).collect()
        })
    }

    /// Does something with the entries of an owner that are not too old.
    fn with<T>(&self, owner: Owner, work: impl FnOnce(&mut OfOwner) -> T) -> T {
        let mut owners = self.lock();
        let of_owner = owners.entry(owner).or_default();
        drop(of_owner.take_old(self.time));
        work(of_owner)
    }

    /// Drops what no owner has used for the time. This takes long if it is much, but others use the store meanwhile.
    pub(crate) fn drop_old(&self) {
        let mut old = Vec::new();
        for of_owner in self.lock().values_mut() {
            old.extend(of_owner.take_old(self.time));
        }
        // The lock is free again.
        drop(old);
    }

    /// Stores an entry in place of those that were not used for the longest time. Returns whether there is room.
    fn put(&self, owner: Owner, id: String, parts: Parts, object: Bytes) -> bool {
        let mut owners = self.lock();
        self.place(owners.entry(owner).or_default(), id, parts, object)
    }

    /// Like [`put`](Self::put), among the entries of an owner.
    fn place(
        &self,
        of_owner: &mut OfOwner,
        id: String,
        (earlier, items): Parts,
        object: Bytes,
    ) -> bool {
        let bytes = bytes(&items, &object);
        if bytes > self.most_bytes {
            of_owner.remove(&id);
            return false;
        }
        let mut firsts = Vec::new();
        if let Some(before) = of_owner.take(&id) {
            // What a conversation had stays a part of it when it grows.
            let grows = |earlier: &Arc<Items>| Arc::ptr_eq(earlier, &before.items);
            if earlier.as_ref().is_some_and(grows) {
                firsts = before.firsts;
            } else {
                of_owner.forget(&before);
            }
        }
        let (count, of_earlier) = earlier.as_ref().map_or((0, 0), |earlier| earlier.size);
        let of_items = items.iter().map(|item| item.bytes);
        let of_items = of_items.fold(0, usize::saturating_add);
        let size = (count + items.len(), of_earlier.saturating_add(of_items));
        of_owner.used.fetch_add(bytes, Ordering::Relaxed);
        firsts.push(of_owner.next);
        of_owner.next += items.len() as u64;
        let items = Arc::new(Items {
            earlier,
            items,
            size,
            bytes,
            used: Arc::clone(&of_owner.used),
        });
        of_owner.push(Entry {
            id,
            items,
            firsts,
            object,
            used: Instant::now(),
        });
        // Items of a removed entry stay while later ones continue them: these are removed next.
        while of_owner.entries.len() > MAX_ENTRIES
            || (of_owner.used.load(Ordering::Relaxed) > self.most_bytes
                && !of_owner.entries.is_empty())
        {
            of_owner.remove_at(0);
        }
        !of_owner.entries.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, OfOwner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Stores a response that has ended.
    pub(crate) fn keep(&mut self, response: &Value) {
        let mut items = std::mem::take(&mut self.input);
        let output = response["output"].as_array().into_iter().flatten();
        items.extend(output.cloned().map(Item::new));
        if let Some(id) = &self.conversation {
            let grow = |before: &Arc<Items>, object| {
                // Another request may have added an item with the same id while this one was answered.
                let items = with_other_ids(before, &items);
                Ok(((Some(Arc::clone(before)), items), object))
            };
            // A conversation without its latest turn is not the client's any more.
            if self.store.change(self.owner, id, grow).is_err() {
                self.store.delete(self.owner, id);
            }
        }
        if self.stores {
            let id = response["id"].as_str().unwrap_or_default().to_owned();
            let items = (self.earlier.take(), items);
            let object = response.to_string().into();
            self.store.put(self.owner, id, items, object);
        }
    }
}

/// Returns an item as it is stored: without null fields, and with an id in place of a missing or empty one.
pub(crate) fn whole_item(mut item: Value) -> Value {
    let drop_nulls = |value: &mut Value| {
        let fields = value.as_object_mut().into_iter();
        fields.for_each(|fields| fields.retain(|_, value| !value.is_null()));
    };
    drop_nulls(&mut item);
    for name in ["content", "output", "summary"] {
        let parts = item.get_mut(name).and_then(Value::as_array_mut);
        parts.into_iter().flatten().for_each(drop_nulls);
    }
    match item["id"].as_str() {
        None | Some("") => with_new_id(item),
        Some(_) => item,
    }
}

/// Returns an item with an id of its own.
fn with_new_id(mut item: Value) -> Value {
    if let Value::Object(fields) = &mut item {
        let prefix = match fields.get("type").and_then(Value::as_str) {
            Some("reasoning") => "rs_",
            Some("function_call") => "fc_",
            Some("function_call_output") => "fco_",
            Some("message") | None => "msg_",
            Some(_) => "item_",
        };
        fields.insert("id".to_owned(), new_id(prefix).into());
    }
    item
}

/// Returns `items` with new ids in place of those that an item of `before` has.
fn with_other_ids(before: &Items, items: &[Arc<Item>]) -> Vec<Arc<Item>> {
    let before = before.all();
    let ids: HashSet<_> = before.into_iter().filter_map(|item| item.id()).collect();
    let item = |item: &Arc<Item>| match item.id() {
        Some(id) if ids.contains(id) => Item::new(with_new_id(item.value().clone())),
        _ => Arc::clone(item),
    };
    items.iter().map(item).collect()
}

/// Estimates the memory of an entry in bytes, without what it continues.
fn bytes(items: &[Arc<Item>], object: &Bytes) -> usize {
    let of_items = items.iter().map(|item| item.bytes);
    let of_items = of_items.fold(BYTES_PER_ITEM, usize::saturating_add);
    of_items.saturating_add(object.len())
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
        let item = json!({"id": format!("item of {id}"), "text": "a".repeat(1000)});
        let items = vec![Item::new(item)];
        store.put(owner, id.into(), (earlier, items), "{}".into())
    }

    fn has_item(store: &Store, owner: Owner, id: &str) -> bool {
        store.find(owner, &[id])[0].is_some()
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
        let id = "item of 99";
        assert!(has_item(&store, first, id) && !has_item(&store, other, id));
        let large = vec![Item::new(json!("a".repeat(1 << 15)))];
        assert!(!store.put(first, "large".into(), (None, large), "{}".into()));
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
        // Nor where its owner asks for nothing.
        assert!(put(&store, Owner::default(), "b", None));
        store.drop_old();
        assert!(store.lock()[&Owner::default()].entries.is_empty());
    }

    #[test]
    fn items_of_a_conversation_are_found_until_it_ends_or_loses_them() {
        let store = store(1 << 20, Duration::from_secs(3600), &[]);
        let owner = Owner::default();
        put(&store, owner, "a", None);
        for number in 0..3 {
            let more = vec![Item::new(json!({"id": format!("more {number}")}))];
            let grow = |before: &Arc<Items>, object| {
                Ok(((Some(Arc::clone(before)), more.clone()), object))
            };
            store.change(owner, "a", grow).unwrap();
        }
        let ids = ["item of a", "more 0", "more 1", "more 2"];
        assert!(ids.iter().all(|id| has_item(&store, owner, id)));
        let keep_last = |items: &Arc<Items>, object| {
            let all = items.all().into_iter().skip(3);
            Ok(((None, all.map(Arc::clone).collect()), object))
        };
        store.change(owner, "a", keep_last).unwrap();
        assert_eq!(
            ids.map(|id| has_item(&store, owner, id)),
            [false, false, false, true]
        );
        store.delete(owner, "a");
        assert!(store.lock()[&owner].by_id.is_empty());
    }
}
