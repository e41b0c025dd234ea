//! Exclusive use of a chat or a session: it computes one answer at a time, on another thread.

use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::{Code, Failure};

/// The place of a chat or a session, which is empty while an answer is generated. Clones share it.
#[derive(Debug)]
pub struct Lender<T>(Arc<Mutex<Option<T>>>);

/// A chat or a session in use; it returns to its place when this is dropped.
#[derive(Debug)]
pub struct Loan<T> {
    place: Lender<T>,
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
        Self(Arc::new(Mutex::new(Some(value))))
    }

    /// Takes the value for the time of an answer.
    ///
    /// # Errors
    /// [`Code::Busy`] if an answer is generated.
    pub fn lend(&self) -> Result<Loan<T>, Failure> {
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let value = Some(value.ok_or_else(busy)?);
        let place = self.clone();
        Ok(Loan { place, value })
    }

    /// Returns the result of `work` with the value, which takes a short time.
    ///
    /// # Errors
    /// [`Code::Busy`] if an answer is generated.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Failure> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.as_mut().map(work).ok_or_else(busy)
    }
}

fn busy() -> Failure {
    Failure::new(
        Code::Busy,
        "an answer is being generated: wait for it, or cancel it",
    )
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
        *self.place.0.lock().unwrap_or_else(PoisonError::into_inner) = self.value.take();
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
}
