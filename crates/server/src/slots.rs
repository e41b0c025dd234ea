//! The models of a server and their states: which are offered, and which are in memory.
//!
//! The [registry](crate::registry) locks them. What leaves the memory is returned, so that it is dropped without the lock.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::hosted::HostedModel;
use crate::metrics::ModelMetrics;
use crate::served::ServedModel;

/// The models and their states.
pub(crate) struct Models {
    /// In the order in which they were added. A model that was removed keeps its place, so that indices stay valid; a
    /// model of the same name takes it again.
    pub(crate) slots: Vec<Slot>,
    /// The number of requests so far.
    requests: u64,
    /// Whether a task checks for idle models.
    pub(crate) is_swept: bool,
}

/// A model and its state.
pub(crate) struct Slot {
    pub(crate) hosted: Arc<HostedModel>,
    pub(crate) metrics: ModelMetrics,
    /// Whether the server was started with the model. Such a model is never removed.
    is_given: bool,
    is_removed: bool,
    /// The model, if it is in memory.
    pub(crate) served: Option<Arc<ServedModel>>,
    /// Whether the model is being loaded.
    is_loading: bool,
    /// The number of the latest request for the model, as counted by `Models::requests`.
    asked: u64,
    pub(crate) kept: Kept,
}

impl Slot {
    fn new(hosted: HostedModel, metrics: ModelMetrics, is_given: bool) -> Self {
        Self {
            hosted: Arc::new(hosted),
            metrics,
            is_given,
            is_removed: false,
            served: None,
            is_loading: false,
            asked: 0,
            kept: Kept::default(),
        }
    }

    /// Returns whether `model` is the one that is offered here already.
    fn offers(&self, model: &HostedModel) -> bool {
        let HostedModel { bytes, facts, .. } = model;
        !self.is_removed && self.hosted.bytes == *bytes && self.hosted.facts == *facts
    }

    /// Returns whether no request waits for the model or runs on it. While the lock of the models is held, no other
    /// thread can clone a model that only the registry references.
    fn is_idle(&self) -> bool {
        self.served
            .as_ref()
            .is_some_and(|one| Arc::strong_count(one) == 1)
    }
}

/// A model as lists show it.
pub(crate) struct Offered {
    pub(crate) hosted: Arc<HostedModel>,
    /// Whether the server was started with the model.
    pub(crate) is_given: bool,
    /// The model's context, if it is in memory.
    pub(crate) context: Option<usize>,
    /// The time after which it leaves the memory, if it has one.
    pub(crate) rest: Option<Duration>,
}

/// How long a model stays in memory after its last request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kept {
    /// `None` keeps the model until another one needs the memory.
    pub(crate) time: Option<Duration>,
    /// The time since which the model is known to be idle.
    pub(crate) idle_since: Option<Instant>,
}

impl Offered {
    /// Returns whether the next request for the model finds it in memory, or may load it.
    pub(crate) fn is_usable(&self) -> bool {
        self.context.is_some() || (self.hosted.check)().is_ok()
    }
}

impl Models {
    /// Returns models that the server is started with.
    pub(crate) fn new(given: impl Iterator<Item = (HostedModel, ModelMetrics)>) -> Self {
        let slots = given.map(|(model, metrics)| Slot::new(model, metrics, true));
        Self {
            slots: slots.collect(),
            requests: 0,
            is_swept: false,
        }
    }

    /// Returns the models that requests may name.
    pub(crate) fn offered(&self) -> Vec<Offered> {
        let rest = |kept: &Kept| {
            let idle = kept
                .idle_since
                .map_or(Duration::ZERO, |since| since.elapsed());
            kept.time.map(|time| time.saturating_sub(idle))
        };
        let slots = self.slots.iter().filter(|slot| !slot.is_removed);
        slots
            .map(|slot| Offered {
                hosted: Arc::clone(&slot.hosted),
                is_given: slot.is_given,
                context: slot.served.as_ref().map(|model| model.context()),
                rest: rest(&slot.kept),
            })
            .collect()
    }

    /// Returns the index of the model that a request names, or of the first model if it names none. If `answers_for_any`,
    /// an only model also takes other names.
    ///
    /// # Errors
    /// The names of all models, if there is none of this name.
    pub(crate) fn index(&self, name: Option<&str>, answers_for_any: bool) -> Result<usize, String> {
        let slots = self.slots.iter().enumerate();
        let offered: Vec<_> = slots.filter(|(_, slot)| !slot.is_removed).collect();
        let is_meant = |slot: &Slot| name.is_none_or(|name| slot.hosted.is_called(name));
        if let Some((index, _)) = offered.iter().find(|(_, slot)| is_meant(slot)) {
            return Ok(*index);
        }
        match &offered[..] {
            [(index, _)] if answers_for_any => Ok(*index),
            _ => {
                let names = offered.iter().flat_map(|(_, slot)| slot.hosted.names());
                Err(names.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Returns the index of the model whose responses have this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.hosted.name == name)
    }

    /// Adds a model, or replaces the one of the same name if it has changed. Returns the old one, if it is in memory.
    ///
    /// # Errors
    /// A sentence, if the server was started with another model of this name.
    pub(crate) fn add(
        &mut self,
        model: HostedModel,
        metrics: ModelMetrics,
    ) -> Result<Option<Arc<ServedModel>>, String> {
        let is_same = |slot: &&mut Slot| slot.hosted.names().any(|own| own == model.name);
        match self.slots.iter_mut().find(is_same) {
            Some(slot) if slot.is_given => Err(format!(
                "the server was started with another model {}",
                model.name
            )),
            // Replaced, a model in use would be in memory twice.
            Some(slot) if slot.offers(&model) => Ok(None),
            Some(slot) => {
                let served = slot.served.take();
                let is_loading = slot.is_loading;
                *slot = Slot::new(model, metrics, false);
                slot.is_loading = is_loading;
                Ok(served)
            }
            None => {
                self.slots.push(Slot::new(model, metrics, false));
                Ok(None)
            }
        }
    }

    /// Removes the models that `is_meant` holds for, except for those that the server was started with. Returns those of
    /// them that are in memory.
    ///
    /// # Errors
    /// The name of a model that a request uses. None is removed then.
    pub(crate) fn remove(
        &mut self,
        is_meant: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Arc<ServedModel>>, String> {
        let is_meant =
            |slot: &Slot| !slot.is_given && !slot.is_removed && is_meant(&slot.hosted.name);
        let mut slots = self.slots.iter().filter(|slot| is_meant(slot));
        let is_in_use = |slot: &Slot| slot.served.is_some() && !slot.is_idle();
        if let Some(slot) = slots.find(|slot| slot.is_loading || is_in_use(slot)) {
            return Err(slot.hosted.name.clone());
        }
        let mut dropped = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| is_meant(slot)) {
            slot.is_removed = true;
            dropped.extend(slot.served.take());
        }
        Ok(dropped)
    }

    /// Returns the model at `index` if it is in memory, and marks it as the most recently requested.
    pub(crate) fn ask(&mut self, index: usize) -> Option<Arc<ServedModel>> {
        let slot = &mut self.slots[index];
        let model = slot.served.clone()?;
        self.requests += 1;
        slot.asked = self.requests;
        slot.kept.idle_since = None;
        Some(model)
    }

    /// Begins to load the model at `index`, unless it was removed.
    pub(crate) fn begin_load(&mut self, index: usize) -> Option<(Arc<HostedModel>, ModelMetrics)> {
        let slot = &mut self.slots[index];
        if slot.is_removed {
            return None;
        }
        slot.is_loading = true;
        Some((Arc::clone(&slot.hosted), slot.metrics.clone()))
    }

    /// Ends the load of the model at `index`, whether it succeeded or not.
    pub(crate) fn end_load(&mut self, index: usize) {
        self.slots[index].is_loading = false;
    }

    /// Puts the model of `hosted` into memory, for `time` after its last request. A model that was removed or replaced
    /// during its load does not return there: only the request that waits for it has it.
    pub(crate) fn put(
        &mut self,
        index: usize,
        (hosted, served): (&Arc<HostedModel>, &Arc<ServedModel>),
        time: Option<Duration>,
    ) {
        let slot = &mut self.slots[index];
        if slot.is_removed || !Arc::ptr_eq(&slot.hosted, hosted) {
            return;
        }
        self.requests += 1;
        slot.asked = self.requests;
        slot.served = Some(Arc::clone(served));
        slot.kept = Kept {
            time,
            idle_since: None,
        };
    }

    /// Takes the idle models that were used the longest ago, until the model at `index` fits into `most` bytes.
    ///
    /// # Errors
    /// The names of the models in use, if these leave too little memory.
    pub(crate) fn make_room(
        &mut self,
        index: usize,
        most: u64,
    ) -> Result<Vec<Arc<ServedModel>>, String> {
        let slots = &mut self.slots;
        let most = most.saturating_sub(slots[index].hosted.bytes);
        let mut by_age: Vec<_> = (0..slots.len())
            .filter(|other| slots[*other].served.is_some())
            .collect();
        by_age.sort_by_key(|other| slots[*other].asked);
        let (idle, in_use): (Vec<_>, Vec<_>) = by_age
            .into_iter()
            .partition(|other| slots[*other].is_idle());
        let bytes = |models: &[usize]| -> u64 {
            let bytes = models.iter().map(|other| slots[*other].hosted.bytes);
            bytes.sum()
        };
        let held = bytes(&in_use);
        if held > most {
            let names = in_use.iter().map(|other| &*slots[*other].hosted.name);
            return Err(names.collect::<Vec<_>>().join(", "));
        }
        let first_kept = (0..=idle.len()).find(|first| held + bytes(&idle[*first..]) <= most);
        let leaving = &idle[..first_kept.unwrap_or(idle.len())];
        Ok(leaving
            .iter()
            .filter_map(|other| slots[*other].served.take())
            .collect())
    }

    /// Takes models that were idle for as long as they may stay.
    pub(crate) fn take_expired(&mut self) -> Vec<Arc<ServedModel>> {
        let mut dropped = Vec::new();
        for slot in &mut self.slots {
            let Some(time) = slot.kept.time else { continue };
            if slot.is_idle() {
                let since = *slot.kept.idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= time {
                    dropped.extend(slot.served.take());
                    slot.kept = Kept::default();
                }
            } else if slot.served.is_some() {
                slot.kept.idle_since = None;
            } else {
                slot.kept = Kept::default();
            }
        }
        dropped
    }

    /// Takes all models that no request waits for or uses.
    pub(crate) fn take_idle(&mut self) -> Vec<Arc<ServedModel>> {
        let idle = self.slots.iter_mut().filter(|slot| slot.is_idle());
        idle.filter_map(|slot| slot.served.take()).collect()
    }

    /// Returns whether a model may stay in memory for a limited time.
    pub(crate) fn is_limited(&self) -> bool {
        self.slots.iter().any(|slot| slot.kept.time.is_some())
    }

    /// Returns each model that is in memory, with the number of its latest request, and whether no request uses it.
    /// They stay idle: the results do not count as users.
    pub(crate) fn activity(&self) -> Vec<Option<(Weak<ServedModel>, u64, bool)>> {
        let of_one = |slot: &Slot| {
            let model = slot.served.as_ref()?;
            let is_idle = slot.is_idle() && model.queue().counts() == (0, 0);
            Some((Arc::downgrade(model), slot.asked, is_idle))
        };
        self.slots.iter().map(of_one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosted::{LoadError, ModelFacts};
    use crate::metrics::Metrics;

    fn model(bytes: u64) -> HostedModel {
        HostedModel {
            name: "a".into(),
            aliases: Vec::new(),
            bytes,
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(|| Err(LoadError::from("it is never loaded"))),
        }
    }

    #[test]
    fn a_model_that_is_added_again_is_replaced_only_if_it_has_changed_or_was_removed() {
        let metrics = Metrics::new();
        let mut models = Models::new(std::iter::empty());
        let mut add = |bytes: u64, removes: bool| {
            if removes {
                models.remove(&|_| true).unwrap();
                assert!(models.offered().is_empty());
            }
            models.add(model(bytes), metrics.of_model("a")).unwrap();
            assert_eq!(models.offered().len(), 1);
            Arc::clone(&models.slots[0].hosted)
        };
        let first = add(1, false);
        assert!(Arc::ptr_eq(&first, &add(1, false)));
        let changed = add(2, false);
        assert!(!Arc::ptr_eq(&first, &changed));
        assert!(!Arc::ptr_eq(&changed, &add(2, true)));
    }
}
