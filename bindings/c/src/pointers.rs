//! Pointers of the caller.
//!
//! Each function here trusts what `triad.h` demands of callers: a pointer that is not NULL points to as many valid values
//! as it has to, for as long as the call lasts.

use std::ffi::{CStr, CString, c_char};

use crate::status::{Failure, c_text};

/// What `pointer` points to.
pub fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: a pointer of the caller, which is valid for the call if it is not NULL (see above).
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(name, "a pointer that is not NULL"))
}

/// What `pointer` points to, or nothing.
pub fn optional<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: as in `reference`.
    unsafe { pointer.as_ref() }
}

/// The options of a caller, which may be NULL for the usual ones: a structure that begins with its own size, of which no more
/// is looked at where that is another one. `default` is the name of the function that fills it in.
pub fn options<T: Copy>(pointer: *const T, usual: T, default: &str) -> Result<T, Failure> {
    let Some(size) = optional(pointer.cast::<usize>()) else {
        return Ok(usual);
    };
    if *size != size_of::<T>() {
        let expected = format!("{}: fill options in with {default}", size_of::<T>());
        return Err(Failure::argument("options->struct_size", &expected));
    }
    reference("options", pointer).copied()
}

/// `count` values.
pub fn slice<'a, T>(name: &str, pointer: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    reference(name, pointer)?;
    if count
        .checked_mul(size_of::<T>())
        .is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return Err(Failure::argument(name, "fewer values"));
    }
    // SAFETY: as in `reference`, with a size that is possible.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A text that ends with NUL.
pub fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    reference(name, pointer)?;
    // SAFETY: as in `reference`; texts end with NUL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::argument(name, "a text in UTF-8"))
}

/// Writes `value` to where the caller wants it.
pub fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    reference(name, pointer)?;
    // SAFETY: as in `reference`; what is there is not read, so that it may be of no value yet.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Gives a value to the caller.
pub fn give<T>(name: &str, pointer: *mut *mut T, value: T) -> Result<(), Failure> {
    reference(name, pointer)?;
    write(name, pointer, Box::into_raw(Box::new(value)))
}

/// Takes back what [`give`] gave, and drops it.
pub fn take_back<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller had it from `give`, and uses it no more.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// Gives values to the caller: where they are, and how many.
pub fn give_values<T>(
    name: &str,
    pointer: *mut *mut T,
    count: *mut usize,
    values: Vec<T>,
) -> Result<(), Failure> {
    reference(name, pointer)?;
    reference("count", count)?;
    let values = values.into_boxed_slice();
    write("count", count, values.len())?;
    write(name, pointer, Box::into_raw(values).cast())
}

/// Takes back what [`give_values`] gave, and drops it.
pub fn take_values_back<T>(pointer: *mut T, count: usize) {
    if !pointer.is_null() {
        // SAFETY: the caller had both from `give_values`, and uses them no more.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, count)) });
    }
}

/// Gives a text to the caller.
pub fn give_text(name: &str, pointer: *mut *mut c_char, text: &str) -> Result<(), Failure> {
    reference(name, pointer)?;
    write(name, pointer, c_text(text).into_raw())
}

/// Takes back what [`give_text`] gave, and drops it.
pub fn take_text_back(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller had it from `give_text`, and uses it no more.
        drop(unsafe { CString::from_raw(text) });
    }
}
