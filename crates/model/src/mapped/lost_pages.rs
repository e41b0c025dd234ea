//! Pages of mapped files that are gone: a file that became shorter, or a device that cannot be read.
//!
//! Reading such a page raises the signal SIGBUS, which ends a process. For pages of files that are [`Watched`], a handler puts zeros
//! in their place, so that the thread goes on, and marks the mapping; the mark is read before a result that was computed with the file is
//! given out. Every other SIGBUS is left to the handler that was there before.
//!
//! `unsafe` is needed for the handler: it is called by the system with raw pointers, and changes a mapping in place.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// A mapping, as the handler finds it. Entries are never freed, since the handler may read them at any time: they are used again.
#[derive(Debug)]
struct Entry {
    is_used: AtomicBool,
    start: AtomicUsize,
    /// The end of the last page; 0 while the entry stands for no mapping.
    end: AtomicUsize,
    is_lost: AtomicBool,
    next: OnceLock<Box<Entry>>,
}

static FIRST: Entry = Entry::new();
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The handler that was there before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A range of addresses, the pages of a mapped file, whose loss is noticed as long as this lives.
#[derive(Debug)]
pub(super) struct Watched {
    entry: &'static Entry,
}

impl Watched {
    /// Watches the mapping at `addresses`, which begins with a page. Dropped before the mapping ends.
    pub(super) fn new(addresses: Range<usize>) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let page = PAGE.load(Ordering::Relaxed);
        let entry = Entry::unused();
        entry.is_lost.store(false, Ordering::SeqCst);
        entry.start.store(addresses.start, Ordering::SeqCst);
        entry
            .end
            .store(addresses.end.next_multiple_of(page), Ordering::SeqCst);
        Self { entry }
    }

    /// Returns whether a page was read that is gone: zeros are in its place.
    pub(super) fn is_lost(&self) -> bool {
        self.entry.is_lost.load(Ordering::SeqCst)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.entry.end.store(0, Ordering::SeqCst);
        self.entry.is_used.store(false, Ordering::SeqCst);
    }
}

impl Entry {
    const fn new() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
            next: OnceLock::new(),
        }
    }

    /// Returns an entry for one mapping alone: one that was used before, or another at the end of the list.
    fn unused() -> &'static Self {
        let mut entry = &FIRST;
        while entry.is_used.swap(true, Ordering::SeqCst) {
            entry = entry.next.get_or_init(|| Box::new(Self::new()));
        }
        entry
    }

    /// Returns whether `address` is in the mapping. It is called in the handler: it only loads atomics.
    fn has(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        let end = self.end.load(Ordering::SeqCst);
        // The entry may have become that of another mapping in between.
        (start..end).contains(&address) && self.start.load(Ordering::SeqCst) == start
    }
}

fn install() {
    // SAFETY: sysconf only reads a number of the system's.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::SeqCst);
    // SAFETY: a sigaction is plain data, for which zeros are a value; both calls only write to and read from those given, and the handler
    // has the signature that SA_SIGINFO demands. What it replaces is asked for first, since it may be needed at once.
    unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) != 0 {
            return;
        }
        PREVIOUS.get_or_init(|| previous);
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Handles the signal. It may interrupt any code: it takes no lock, allocates nothing and does not panic.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the system calls a handler with SA_SIGINFO with a valid siginfo_t, which for SIGBUS has an address.
    let (address, is_of_system) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    if is_of_system && replace(address) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else {
        return end(signal);
    };
    match previous.sa_sigaction {
        libc::SIG_IGN if !is_of_system => {}
        libc::SIG_DFL | libc::SIG_IGN => end(signal),
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO this is a handler with these arguments, which are those of the system.
            unsafe {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO this is a handler with this argument alone.
            unsafe {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Has the signal end the process, as it would without a handler.
fn end(signal: libc::c_int) {
    // SAFETY: both calls may be made in a handler, and take numbers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Puts pages of zeros from `address` to the end of the watched mapping that it is in; false if it is in none. What follows a page that
/// is gone is gone, too, or of no use without it.
fn replace(address: usize) -> bool {
    let mut next = Some(&FIRST);
    while let Some(entry) = next {
        if entry.has(address) {
            entry.is_lost.store(true, Ordering::SeqCst);
            let start = address & !(PAGE.load(Ordering::SeqCst) - 1);
            let length = entry.end.load(Ordering::SeqCst).saturating_sub(start);
            // SAFETY: the pages are those of a mapping of this process that is only read and that the interrupted thread reads now, so that
            // it does not end meanwhile; nothing else is replaced. The call is made directly to the system, without a lock.
            let replaced = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    length,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            return replaced != libc::MAP_FAILED;
        }
        next = entry.next.get().map(|entry| &**entry);
    }
    false
}
