//! Exclusive use of a chat or a session: it computes one answer at a time, on another thread.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::{Code, Failure};

/// The place of a chat or a session, which is empty while an answer is generated. Clones share it.
#[derive(Debug)]
pub struct Lender<T>(Arc<Mutex<Place<T>>>);

#[derive(Debug)]
enum Place<T> {
    Idle(T),
    Lent,
    Closed,
}

/// A chat or a session in use; it returns to its place when this is dropped.
#[derive(Debug)]
pub struct Loan<T> {
    lender: Lender<T>,
    value: Option<T>,
}

impl<T> Clone for Lender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Lender<T> {
    /// Creates a place with `value` in it.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(Place::Idle(value))))
    }

    /// Takes the value for the time of an answer.
    ///
    /// # Errors
    /// [`Code::Busy`] if an answer is generated, [`Code::InvalidArgument`] if the place is closed.
    pub fn lend(&self) -> Result<Loan<T>, Failure> {
        let mut place = self.place();
        match mem::replace(&mut *place, Place::Lent) {
            Place::Idle(value) => Ok(Loan {
                lender: self.clone(),
                value: Some(value),
            }),
            other => {
                let failure = unusable(&other);
                *place = other;
                Err(failure)
            }
        }
    }

    /// Returns the result of `work` with the value, which takes a short time.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Failure> {
        match &mut *self.place() {
            Place::Idle(value) => Ok(work(value)),
            other => Err(unusable(other)),
        }
    }

    /// Drops the value, with its memory; if it is lent, once it returns.
    pub fn close(&self) {
        let closed = mem::replace(&mut *self.place(), Place::Closed);
        drop(closed);
    }

    fn place(&self) -> MutexGuard<'_, Place<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unusable<T>(place: &Place<T>) -> Failure {
    match place {
        Place::Closed => Failure::new(Code::InvalidArgument, "the chat or session is closed"),
        _ => Failure::new(
            Code::Busy,
            "an answer is being generated: wait for it, or cancel it",
        ),
    }
}

impl<T> Loan<T> {
    /// Returns the value.
    pub fn get(&mut self) -> &mut T {
        self.value
            .as_mut()
            .expect("the value is present until this is dropped")
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        let mut place = self.lender.place();
        if let (Place::Lent, Some(value)) = (&*place, self.value.take()) {
            *place = Place::Idle(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_busy_until_it_is_returned() {
        let lender = Lender::new(1);
        let mut loan = lender.lend().unwrap();
        *loan.get() += 1;
        assert_eq!(lender.lend().unwrap_err().code(), Code::Busy);
        assert_eq!(lender.with(|_| ()).unwrap_err().code(), Code::Busy);
        drop(loan);
        assert_eq!(lender.with(|value| *value).unwrap(), 2);
    }

    #[test]
    fn what_is_closed_is_dropped_at_once_or_when_it_returns() {
        for is_lent in [false, true] {
            let value = Arc::new(());
            let lender = Lender::new(Arc::clone(&value));
            let loan = is_lent.then(|| lender.lend().unwrap());
            lender.close();
            assert_eq!(Arc::strong_count(&value), 1 + usize::from(is_lent));
            drop(loan);
            assert_eq!(Arc::strong_count(&value), 1);
            assert_eq!(lender.lend().unwrap_err().code(), Code::InvalidArgument);
        }
    }
}
