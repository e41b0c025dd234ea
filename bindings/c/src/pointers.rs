//! The caller's pointers.
//!
//! Each function here relies on the requirements of `triad.h`: a pointer that is not NULL points to the required number
//! of valid values for the duration of the call.

use std::ffi::{CStr, CString, c_char};

use crate::status::{Failure, c_text};

/// Returns the target of `pointer`, which must not be NULL.
pub fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's pointer is valid for the call if it is not NULL (see above).
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(name, "a pointer that is not NULL"))
}

/// Returns the target of `pointer`; `None` if it is NULL.
pub fn optional<'a, T>(pointer: *const T) -> Option<&'a T> {
    // SAFETY: as in `reference`.
    unsafe { pointer.as_ref() }
}

/// Returns the caller's options; NULL means the `usual` ones. The structure begins with its own size; if that is a
/// different one, nothing else in it is read. `default` is the name of the function that fills it in.
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

/// Returns `count` values.
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
    // SAFETY: as in `reference`, with a possible size.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns a text that ends with NUL.
pub fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    reference(name, pointer)?;
    // SAFETY: as in `reference`; texts end with NUL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::argument(name, "a text in UTF-8"))
}

/// Writes `value` to the caller's `pointer`.
pub fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    reference(name, pointer)?;
    // SAFETY: as in `reference`; the old value is not read, so it may be uninitialized.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Moves a value to the caller.
pub fn give<T>(name: &str, pointer: *mut *mut T, value: T) -> Result<(), Failure> {
    reference(name, pointer)?;
    write(name, pointer, Box::into_raw(Box::new(value)))
}

/// Takes a value of [`give`] back, and drops it.
pub fn take_back<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the pointer is from `give`, and the caller does not use it again.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// Moves values to the caller: a pointer to them, and their number.
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

/// Takes values of [`give_values`] back, and drops them.
pub fn take_values_back<T>(pointer: *mut T, count: usize) {
    if !pointer.is_null() {
        // SAFETY: both are from `give_values`, and the caller does not use them again.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, count)) });
    }
}

/// Moves a text to the caller.
pub fn give_text(name: &str, pointer: *mut *mut c_char, text: &str) -> Result<(), Failure> {
    reference(name, pointer)?;
    write(name, pointer, c_text(text).into_raw())
}

/// Takes a text of [`give_text`] back, and drops it.
pub fn take_text_back(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the pointer is from `give_text`, and the caller does not use it again.
        drop(unsafe { CString::from_raw(text) });
    }
}
