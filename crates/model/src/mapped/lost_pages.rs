//! Lost pages of mapped files: a file became shorter, or a device cannot be read.
//!
//! Reading such a page raises the signal SIGBUS, which ends a process. For pages of [`Watched`] files, a handler maps
//! zeros in their place, so that the thread can continue, and marks the mapping. The mark is read before a result that
//! was computed with the file is returned. Every other SIGBUS is passed to the previous handler.
//!
//! The handler needs `unsafe`: the system calls it with raw pointers, and it changes a mapping in place.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// A mapping, as the handler finds it. Entries are reused but never freed, since the handler may read them at any time.
#[derive(Debug)]
struct Entry {
    is_used: AtomicBool,
    start: AtomicUsize,
    /// The end of the last page; 0 while the entry has no mapping.
    end: AtomicUsize,
    is_lost: AtomicBool,
    next: OnceLock<Box<Entry>>,
}

static FIRST: Entry = Entry::new();
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The previous handler.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A range of addresses, the pages of a mapped file, whose loss is detected while this value exists.
#[derive(Debug)]
pub(super) struct Watched {
    entry: &'static Entry,
}

impl Watched {
    /// Watches the mapping at `addresses`, which start at a page. Must be dropped before the mapping ends.
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

    /// Returns whether a lost page was read and replaced by zeros.
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

    /// Returns an entry for exclusive use by one mapping: a reused one, or a new one at the end of the list.
    fn unused() -> &'static Self {
        let mut entry = &FIRST;
        while entry.is_used.swap(true, Ordering::SeqCst) {
            entry = entry.next.get_or_init(|| Box::new(Self::new()));
        }
        entry
    }

    /// Returns whether `address` is in the mapping. The handler calls it, so it only loads atomics.
    fn has(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        let end = self.end.load(Ordering::SeqCst);
        // In the meantime, the entry may have been reused for another mapping.
        (start..end).contains(&address) && self.start.load(Ordering::SeqCst) == start
    }
}

fn install() {
    // SAFETY: sysconf only reads a number of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::SeqCst);
    // SAFETY: a sigaction is plain data, for which zeros are a valid value; both calls only access their arguments, and
    // the handler has the signature that SA_SIGINFO requires. The previous handler is read first, since it may be
    // needed at once.
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

/// Handles the signal. It may interrupt any code, so it takes no lock, allocates nothing and does not panic.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO, the system passes a handler a valid siginfo_t, which has an address for SIGBUS.
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
            // SAFETY: with SA_SIGINFO, the previous handler has these parameters, and the arguments are the system's.
            unsafe {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO, the previous handler has only this parameter.
            unsafe {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Ends the process by the signal, as without a handler.
fn end(signal: libc::c_int) {
    // SAFETY: both calls are permitted in a handler, and take numbers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Maps zeros from `address` to the end of the watched mapping that contains it; returns false if none does. The pages
/// after a lost page are also lost, or useless without it.
fn replace(address: usize) -> bool {
    let mut next = Some(&FIRST);
    while let Some(entry) = next {
        if entry.has(address) {
            entry.is_lost.store(true, Ordering::SeqCst);
            let start = address & !(PAGE.load(Ordering::SeqCst) - 1);
            let length = entry.end.load(Ordering::SeqCst).saturating_sub(start);
            // SAFETY: the pages belong to a read-only mapping of this process that the interrupted thread is reading,
            // so the mapping cannot end during the call; nothing else is replaced. The call goes directly to the
            // system, without a lock.
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
