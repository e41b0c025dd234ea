//! Admission of requests to an engine.
//!
//! A [`Permit`] is a share of an engine: a number of concurrent completions and a maximum number of KV cache pages. A
//! completion that has started therefore never runs out of pages. If the engine is busy, requests wait in the order of
//! arrival, and different [tenants](Tenant) take turns. The next request waits until there is room for it, however
//! large it is: no other request overtakes it.
//!
//! The need of a request is known only after its prompt is tokenized. Until then the request has a [`Place`], so that
//! no work is done for a request that will be refused. The same type of queue shares the threads that
//! [`prepare`](crate::prepare) requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::owner::Tenant;

/// One in `KEPT` places is reserved for tenants that have no request in the queue, so that one tenant can't fill it.
const KEPT: usize = 8;

/// A share of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Concurrent completions.
    pub(crate) slots: usize,
    /// KV cache pages.
    pub(crate) pages: usize,
}

impl Need {
    fn fits(self, free: Self) -> bool {
        self.slots <= free.slots && self.pages <= free.pages
    }
}

/// A queue that shares an engine among tenants.
pub(crate) struct Queue {
    most: Need,
    most_waiting: usize,
    state: Mutex<State>,
}

struct State {
    free: Need,
    /// The number of places of each tenant: requests that are not prepared yet.
    places: HashMap<Tenant, usize>,
    /// The tenants with waiting requests, the next one first. The requests of a tenant are in the order of arrival.
    clients: VecDeque<(Tenant, VecDeque<Waiting>)>,
}

struct Waiting {
    need: Need,
    granted: oneshot::Sender<Permit>,
}

/// The error of a full queue, with the number of requests in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full(pub(crate) usize);

impl Queue {
    /// Creates a queue for an engine with the capacity `most`. At most `most_waiting` requests may wait.
    pub(crate) fn new(most: Need, most_waiting: usize) -> Arc<Self> {
        let state = State {
            free: most,
            places: HashMap::new(),
            clients: VecDeque::new(),
        };
        Arc::new(Self {
            most,
            most_waiting,
            state: Mutex::new(state),
        })
    }

    /// Returns the total capacity.
    pub(crate) fn most(&self) -> Need {
        self.most
    }

    /// Returns the number of requests that wait or are being prepared, and the number of running completions.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (
            state.places() + state.waiting(),
            self.most.slots - state.free.slots,
        )
    }

    /// Takes a place for a request of `client`. Places and waiting requests together are limited to `most_waiting` plus
    /// the free slots. A part of the places is reserved for tenants that have none.
    ///
    /// # Errors
    /// If the limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, client: Tenant) -> Result<Place, Full> {
        let mut state = self.lock();
        let there = state.places() + state.waiting();
        if there + state.kept_from(client, self.most_waiting)
            >= self.most_waiting + state.free.slots
        {
            return Err(Full(there));
        }
        *state.places.entry(client).or_default() += 1;
        Ok(Place {
            queue: Arc::clone(self),
            client,
        })
    }

    /// Waits until `need`, which is at most [`Queue::most`], is free. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// If the maximum number of requests already waits.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        client: Tenant,
        need: Need,
    ) -> Result<Permit, Full> {
        self.wait(client, need, Some(self.most_waiting)).await
    }

    /// Like [`Queue::admit`], but without a limit: for a part of a request that has already been admitted.
    pub(crate) async fn admit_part(self: &Arc<Self>, client: Tenant, need: Need) -> Permit {
        self.wait(client, need, None)
            .await
            .expect("a request without a limit is never refused")
    }

    async fn wait(
        self: &Arc<Self>,
        client: Tenant,
        need: Need,
        bound: Option<usize>,
    ) -> Result<Permit, Full> {
        // Declared before the receiver and so dropped after it: `Leave` then finds the request's channel closed.
        let mut leave = Leave {
            queue: self,
            is_waiting: false,
        };
        let granted = {
            let mut state = self.lock();
            let waiting = state.waiting();
            if waiting == 0 && need.fits(state.free) {
                return Ok(state.take(self, need));
            }
            if bound.is_some_and(|bound| waiting + state.kept_from(client, bound) >= bound) {
                return Err(Full(waiting));
            }
            let (granted, receiver) = oneshot::channel();
            state.push(client, Waiting { need, granted });
            leave.is_waiting = true;
            receiver
        };
        let permit = granted
            .await
            .expect("a waiting request stays in the queue until it is granted");
        leave.is_waiting = false;
        Ok(permit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn places(&self) -> usize {
        self.places.values().sum()
    }

    /// Returns how many of `places` are not available to `client`, because they are reserved for tenants that have
    /// none.
    fn kept_from(&self, client: Tenant, places: usize) -> usize {
        let waits = self.clients.iter().any(|(known, _)| *known == client);
        if waits || self.places.contains_key(&client) {
            places / KEPT
        } else {
            0
        }
    }

    fn waiting(&self) -> usize {
        self.clients
            .iter()
            .map(|(_, requests)| requests.len())
            .sum()
    }

    fn take(&mut self, queue: &Arc<Queue>, need: Need) -> Permit {
        self.free = Need {
            slots: self.free.slots - need.slots,
            pages: self.free.pages - need.pages,
        };
        Permit {
            queue: Some(Arc::clone(queue)),
            need,
        }
    }

    fn give_back(&mut self, need: Need) {
        self.free = Need {
            slots: self.free.slots + need.slots,
            pages: self.free.pages + need.pages,
        };
    }

    fn push(&mut self, client: Tenant, waiting: Waiting) {
        match self.clients.iter_mut().find(|(known, _)| *known == client) {
            Some((_, requests)) => requests.push_back(waiting),
            None => self.clients.push_back((client, VecDeque::from([waiting]))),
        }
    }

    /// Admits the next requests as long as there is room.
    fn grant(&mut self, queue: &Arc<Queue>) {
        while let Some((client, mut requests)) = self.clients.pop_front() {
            match requests.pop_front() {
                None => {}
                Some(waiting) if waiting.granted.is_closed() => {
                    self.clients.push_front((client, requests));
                }
                Some(waiting) if waiting.need.fits(self.free) => {
                    let permit = self.take(queue, waiting.need);
                    if let Err(mut permit) = waiting.granted.send(permit) {
                        // The request left in the meantime. Dropping its permit normally would lock the queue again: a
                        // deadlock.
                        permit.queue = None;
                        self.give_back(permit.need);
                        self.clients.push_front((client, requests));
                    } else {
                        self.clients.push_back((client, requests));
                    }
                }
                Some(waiting) => {
                    requests.push_front(waiting);
                    self.clients.push_front((client, requests));
                    return;
                }
            }
        }
    }
}

/// Removes a request from the queue when its waiting future is dropped.
struct Leave<'a> {
    queue: &'a Arc<Queue>,
    is_waiting: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            let mut state = self.queue.lock();
            for (_, requests) in &mut state.clients {
                requests.retain(|waiting| !waiting.granted.is_closed());
            }
            state.clients.retain(|(_, requests)| !requests.is_empty());
            // Requests that waited for this one may fit now.
            state.grant(self.queue);
        }
    }
}

/// The place of an accepted request. Dropping it frees the place.
pub(crate) struct Place {
    queue: Arc<Queue>,
    client: Tenant,
}

impl Place {
    /// Returns the tenant of the request.
    pub(crate) fn client(&self) -> Tenant {
        self.client
    }

    /// Waits until `need`, which is at most [`Queue::most`], is free. Dropping the future leaves the queue.
    pub(crate) async fn admit(self, need: Need) -> Permit {
        let (queue, client) = (Arc::clone(&self.queue), self.client);
        let waits = queue.admit_part(client, need);
        // The future has put nothing in the queue yet: free the place first, so that the request is counted only once.
        drop(self);
        waits.await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(places) = state.places.get_mut(&self.client) {
            *places -= 1;
            if *places == 0 {
                state.places.remove(&self.client);
            }
        }
    }
}

/// A share of an engine. Dropping it returns the share.
pub(crate) struct Permit {
    /// `None` once the share is returned.
    queue: Option<Arc<Queue>>,
    need: Need,
}

impl Permit {
    /// Gives all but `pages` back.
    pub(crate) fn keep_pages(&mut self, pages: usize) {
        let rest = self.need.pages.saturating_sub(pages);
        self.need.pages -= rest;
        if let Some(queue) = &self.queue {
            let mut state = queue.lock();
            state.give_back(Need {
                slots: 0,
                pages: rest,
            });
            state.grant(queue);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            let mut state = queue.lock();
            state.give_back(self.need);
            state.grant(&queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const ONE: Need = Need { slots: 1, pages: 1 };

    fn client(number: u8) -> Tenant {
        Tenant::of_key(&number.to_string())
    }

    fn queue(slots: usize, pages: usize, waiting: usize) -> Arc<Queue> {
        Queue::new(Need { slots, pages }, waiting)
    }

    type Admission<'a> = Pin<Box<dyn Future<Output = Result<Permit, Full>> + 'a>>;

    fn poll(admission: &mut Admission) -> Option<Result<Permit, Full>> {
        match admission
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Returns an admission that waits.
    fn waiting(queue: &Arc<Queue>, number: u8, need: Need) -> Admission<'_> {
        let mut admission: Admission = Box::pin(queue.admit(client(number), need));
        assert!(poll(&mut admission).is_none());
        admission
    }

    fn admitted(queue: &Arc<Queue>, need: Need) -> Permit {
        let mut admission: Admission = Box::pin(queue.admit(client(0), need));
        poll(&mut admission).unwrap().unwrap()
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let queue = queue(1, 9, 9);
        let mut permit = Some(admitted(&queue, ONE));
        let mut requests: Vec<_> = [1, 1, 1, 2, 2, 3]
            .map(|number| waiting(&queue, number, ONE))
            .into();
        let mut order = Vec::new();
        for _ in 0..requests.len() {
            drop(permit.take());
            let next = requests
                .iter_mut()
                .enumerate()
                .find_map(|(index, request)| {
                    let is_new = !order.contains(&index);
                    is_new
                        .then(|| poll(request))
                        .flatten()
                        .map(|result| (index, result.unwrap()))
                });
            let (index, granted) = next.unwrap();
            order.push(index);
            permit = Some(granted);
        }
        assert_eq!(order, [0, 3, 5, 1, 4, 2]);
    }

    #[test]
    fn no_request_overtakes_a_large_one() {
        let queue = queue(4, 4, 9);
        let first = admitted(&queue, Need { slots: 1, pages: 3 });
        let mut large = waiting(&queue, 1, Need { slots: 1, pages: 4 });
        let mut small = waiting(&queue, 2, ONE);
        drop(first);
        let permit = poll(&mut large).unwrap().unwrap();
        assert!(poll(&mut small).is_none());
        drop(permit);
        assert!(poll(&mut small).unwrap().is_ok());
    }

    #[test]
    fn more_than_may_wait_are_refused_and_parts_of_admitted_requests_wait() {
        let queue = queue(1, 9, 1);
        let _permit = admitted(&queue, ONE);
        let _one = waiting(&queue, 1, ONE);
        let mut refused: Admission = Box::pin(queue.admit(client(2), ONE));
        assert_eq!(poll(&mut refused).unwrap().err(), Some(Full(1)));
        let mut part = pin!(queue.admit_part(client(2), ONE));
        assert!(
            part.as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert_eq!(queue.counts(), (2, 1));
    }

    #[test]
    fn a_place_is_had_before_anything_is_computed_and_no_more_than_may_wait() {
        let queue = queue(1, 9, 1);
        let (first, second) = (
            queue.enter(client(1)).unwrap(),
            queue.enter(client(2)).unwrap(),
        );
        assert_eq!(queue.enter(client(3)).err(), Some(Full(2)));
        // One of the two is computed, the other one waits.
        let mut first = Box::pin(first.admit(ONE));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(permit) = first.as_mut().poll(&mut context) else {
            panic!("it waits")
        };
        let mut second = Box::pin(second.admit(ONE));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert_eq!(queue.counts(), (1, 1));
        assert_eq!(queue.enter(client(3)).err(), Some(Full(1)));
        // A request that leaves frees its place, whether it waits or is being prepared.
        drop(second);
        drop(queue.enter(client(3)).unwrap());
        assert_eq!(queue.counts(), (0, 1));
        drop(permit);
        assert_eq!((queue.counts(), queue.lock().free), ((0, 0), queue.most()));
    }

    #[test]
    fn a_request_that_leaves_makes_room_for_later_ones() {
        let queue = queue(2, 2, 9);
        let first = admitted(&queue, ONE);
        let large = waiting(&queue, 1, Need { slots: 2, pages: 2 });
        let mut small = waiting(&queue, 2, ONE);
        drop(large);
        let second = poll(&mut small).unwrap().unwrap();
        // This one is granted, and dropped before it is polled again.
        let third = waiting(&queue, 3, ONE);
        drop(first);
        drop(third);
        drop(second);
        assert_eq!((queue.counts(), queue.lock().free), ((0, 0), queue.most()));
    }

    #[test]
    fn a_client_that_fills_its_places_leaves_some_for_others() {
        let queue = queue(1, 9, 16);
        let _permit = admitted(&queue, ONE);
        let mut places: Vec<_> = std::iter::from_fn(|| queue.enter(client(1)).ok()).collect();
        assert_eq!(places.len(), 14);
        let other = queue.enter(client(2)).unwrap();
        assert!(queue.enter(client(2)).is_err());
        // Waiting requests count as well.
        let mut waits = Box::pin(other.admit(ONE));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert_eq!(queue.enter(client(2)).err(), Some(Full(15)));
        drop(waits);
        places.clear();
        let _waiting: Vec<_> = (0..14).map(|_| waiting(&queue, 1, ONE)).collect();
        let mut refused: Admission = Box::pin(queue.admit(client(1), ONE));
        assert_eq!(poll(&mut refused).unwrap().err(), Some(Full(14)));
        let _other = waiting(&queue, 2, ONE);
    }
}
