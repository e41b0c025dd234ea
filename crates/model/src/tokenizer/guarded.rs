//! Calls of the `tokenizers` library, which panics on some files: a panic becomes an error text, and nothing is
//! printed.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Maximum characters of a panic's message in errors: it may quote a whole vocabulary.
const MAX_QUOTED: usize = 200;

thread_local! {
    /// Whether [`guarded`] catches a panic of this thread.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`.
///
/// # Errors
/// The message of a panic, if `work` panics. The process's panic hook is not called for it.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                next(panic);
            }
        }));
    });
    let before = IS_GUARDED.replace(true);
    // Only the library can see data that a panic leaves half-written, and it only reads its tokenizer while it encodes.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(before);
    outcome.map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked")
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(MAX_QUOTED)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_guarded_panic_is_a_message_and_is_not_printed() {
        static PRINTED: AtomicUsize = AtomicUsize::new(0);
        // Only this thread's panics are counted: other tests run concurrently.
        let this = std::thread::current().id();
        let next = take_hook();
        set_hook(Box::new(move |panic| {
            match std::thread::current().id() == this {
                true => _ = PRINTED.fetch_add(1, Ordering::Relaxed),
                false => next(panic),
            }
        }));
        assert_eq!(guarded(|| 1), Ok(1));
        assert_eq!(guarded(|| panic!("one\ntwo")), Err::<(), _>("one".into()));
        assert_eq!(
            guarded(|| guarded(|| panic!("inner"))),
            Ok(Err::<(), _>("inner".into()))
        );
        assert_eq!(PRINTED.load(Ordering::Relaxed), 0);
        assert!(catch_unwind(|| panic!("not guarded")).is_err());
        assert_eq!(PRINTED.load(Ordering::Relaxed), 1);
    }
}
