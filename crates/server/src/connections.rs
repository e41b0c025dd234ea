//! The table of open connections: limits per address, and eviction.
//!
//! An address may have at most half of the connections that other addresses leave, and at least one. If an address is
//! at its limit, or all connections are in use, a new connection replaces one that serves no request: the oldest that
//! has not sent a complete head yet, otherwise the one that has been idle longest. A client that opens connections and
//! sends nothing therefore can't block other clients, even from the same address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use tokio::sync::oneshot;

use crate::held_body::HeldBody;
use crate::owner::{Tenant, share};

/// Files that the server may need for other things than connections: models, saved sessions, processes.
const OTHER_FILES: u64 = 64;

/// Returns how many of `most` connections the server may have if it may have `files` open: at least one.
pub(crate) fn within_files(most: usize, files: Option<u64>) -> usize {
    let left = |files: u64| files.saturating_sub(OTHER_FILES).max(files / 2).max(1);
    files.map_or(most, |files| {
        most.min(usize::try_from(left(files)).unwrap_or(most))
    })
}

/// The table of open connections.
pub(crate) struct Connections {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The connections by number, the oldest first.
    all: BTreeMap<u64, Entry>,
    /// A logical clock that advances whenever a connection opens, or a request begins or ends.
    clock: u64,
}

struct Entry {
    tenant: Tenant,
    phase: Phase,
    /// The logical time at which the phase began.
    since: u64,
    /// Dropping it closes the connection.
    _end: oneshot::Sender<()>,
}

/// The phase of a connection. Earlier variants are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The connection has not sent the complete head of a request.
    New,
    /// The connection waits for another request.
    Idle,
    /// The connection has sent a request whose response is not complete.
    Busy,
}

impl Connections {
    /// Creates a table of at most `max` connections.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let open = Mutex::default();
        Arc::new(Self { max, open })
    }

    /// Adds a connection from `address`, which may replace another one. The receiver completes when the connection must
    /// be closed. Returns `None` if all connections that could be replaced serve requests.
    pub(crate) fn open(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Option<(Arc<Connection>, oneshot::Receiver<()>)> {
        let tenant = Tenant::of_address(address);
        let mut open = self.lock();
        let own = open
            .all
            .values()
            .filter(|entry| entry.tenant == tenant)
            .count();
        let others = open.all.len() - own;
        if own >= share(self.max, others).max(1) {
            open.shed(|entry| entry.tenant == tenant)?;
        } else if open.all.len() >= self.max {
            open.shed(|_| true)?;
        }
        let (end, ended) = oneshot::channel();
        let number = open.tick();
        open.all.insert(
            number,
            Entry {
                tenant,
                phase: Phase::New,
                since: number,
                _end: end,
            },
        );
        drop(open);
        let connection = Connection {
            connections: Arc::clone(self),
            number,
            steps: AtomicU64::new(0),
            reads_rest: AtomicBool::new(false),
        };
        Some((Arc::new(connection), ended))
    }

    /// Closes a connection that serves no request, if there is one: the system has no room for another one.
    pub(crate) fn make_room(&self) {
        let _ = self.lock().shed(|_| true);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Closes one of the connections that `may` selects.
    fn shed(&mut self, may: impl Fn(&Entry) -> bool) -> Option<()> {
        let waiting = self
            .all
            .iter()
            .filter(|(_, entry)| entry.phase != Phase::Busy && may(entry));
        let (number, _) = waiting.min_by_key(|(_, entry)| (entry.phase, entry.since))?;
        let number = *number;
        self.all.remove(&number);
        Some(())
    }
}

/// An open connection. Dropping it removes it from the table.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    /// The number of started requests plus the number of finished responses.
    steps: AtomicU64,
    /// Whether the rest of a body is read whose request is answered.
    reads_rest: AtomicBool,
}

impl Connection {
    /// Returns the number of steps, which changes when a request begins or ends, and whether the connection serves a
    /// request.
    pub(crate) fn steps(&self) -> (u64, bool) {
        let steps = self.steps.load(Ordering::Relaxed);
        (steps, steps % 2 == 1)
    }

    /// Marks the time in which the rest of a body is read whose request is answered: until the result is dropped.
    pub(crate) fn read_rest(self: &Arc<Self>) -> RestRead {
        self.reads_rest.store(true, Ordering::Relaxed);
        RestRead(Arc::clone(self))
    }

    /// Returns whether the rest of a body is read. The connection can still be replaced.
    pub(crate) fn reads_rest(&self) -> bool {
        self.reads_rest.load(Ordering::Relaxed)
    }

    /// Marks the begin of a request, whose head has arrived.
    pub(crate) fn begin(self: &Arc<Self>) -> Served {
        self.step(Phase::Busy);
        Served(Arc::clone(self))
    }

    fn step(&self, phase: Phase) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut open = self.connections.lock();
        let since = open.tick();
        if let Some(entry) = open.all.get_mut(&self.number) {
            (entry.phase, entry.since) = (phase, since);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.lock().all.remove(&self.number);
    }
}

/// The rest of a body that is read. Dropping it ends the reading.
pub(crate) struct RestRead(Arc<Connection>);

impl Drop for RestRead {
    fn drop(&mut self) {
        self.0.reads_rest.store(false, Ordering::Relaxed);
    }
}

/// A request in progress. Dropping it ends the request.
pub(crate) struct Served(Arc<Connection>);

impl Served {
    /// Returns `body` with this request attached: the request ends when the body is dropped.
    pub(crate) fn until_end_of(self, body: Body) -> HeldBody<Self> {
        HeldBody::new(body, self)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.step(Phase::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Opened = (Arc<Connection>, oneshot::Receiver<()>);

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn open(connections: &Arc<Connections>, number: u8) -> Opened {
        connections.open(address(number)).expect("there is room")
    }

    fn is_ended((_, ended): &mut Opened) -> bool {
        ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn files_that_the_process_may_open_are_left_for_other_things_than_connections() {
        let within = |files| within_files(512, files);
        assert_eq!(
            [
                None,
                Some(u64::MAX),
                Some(1024),
                Some(256),
                Some(100),
                Some(1),
                Some(0)
            ]
            .map(within),
            [512, 512, 512, 192, 50, 1, 1]
        );
    }

    #[test]
    fn a_connection_that_serves_no_request_is_closed_where_the_system_has_no_room() {
        let connections = Connections::new(8);
        connections.make_room();
        let mut opened = [open(&connections, 1), open(&connections, 2)];
        let served = opened[0].0.begin();
        connections.make_room();
        assert_eq!(opened.each_mut().map(is_ended), [false, true]);
        connections.make_room();
        assert!(!is_ended(&mut opened[0]));
        drop(served);
    }

    #[test]
    fn an_address_has_half_of_the_connections_that_the_others_leave() {
        let connections = Connections::new(16);
        let mut opened = Vec::new();
        for (number, most) in [(1, 8), (2, 4), (3, 2), (4, 1), (5, 1)] {
            let mut own = Vec::new();
            while let Some((connection, ended)) = connections.open(address(number)) {
                let served = connection.begin();
                own.push((connection, ended, served));
            }
            assert_eq!(own.len(), most, "address {number}");
            opened.push(own);
        }
        opened.clear();
        assert!(connections.lock().all.is_empty());
    }

    #[test]
    fn at_its_bound_an_address_loses_its_oldest_connection_without_a_head_and_no_other_address_does()
     {
        let connections = Connections::new(8);
        let mut other = open(&connections, 2);
        // Three connections are half of what the other address leaves.
        let mut first = open(&connections, 1);
        let mut own = [open(&connections, 1), open(&connections, 1)];
        let served = first.0.begin();
        let mut next = open(&connections, 1);
        assert!(
            is_ended(&mut own[0]),
            "the oldest that sent no head is open"
        );
        assert!(
            ![&mut own[1], &mut next, &mut first, &mut other]
                .into_iter()
                .any(is_ended)
        );
        // Connections without a head are evicted before idle ones.
        drop(served);
        let mut last = open(&connections, 1);
        assert!(is_ended(&mut own[1]) && !is_ended(&mut first));
        let served = [next.0.begin(), last.0.begin()];
        let mut replaces = open(&connections, 1);
        assert!(is_ended(&mut first));
        let _busy = replaces.0.begin();
        assert!(
            connections.open(address(1)).is_none(),
            "a connection that serves a request was closed"
        );
        assert!(
            ![&mut next, &mut last, &mut replaces, &mut other]
                .into_iter()
                .any(is_ended)
        );
        drop(served);
    }

    #[test]
    fn where_all_are_taken_the_oldest_without_a_head_makes_room() {
        let connections = Connections::new(4);
        let mut opened: Vec<_> = [1, 1, 2, 3].map(|number| open(&connections, number)).into();
        let _served = opened[0].0.begin();
        let _next = open(&connections, 4);
        assert_eq!(
            opened.iter_mut().map(is_ended).collect::<Vec<_>>(),
            [false, true, false, false]
        );
    }
}
