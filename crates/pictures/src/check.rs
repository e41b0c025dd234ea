//! Checks of pictures against the [limits](crate::limits).

use crate::error::{Error, Result};
use crate::limits::{MAX_ASPECT, MAX_BYTES, MAX_PIXELS, MAX_SIDE};

/// Checks the number of bytes of a file.
pub(crate) fn check_bytes(bytes: usize) -> Result<()> {
    if bytes > MAX_BYTES {
        return Err(Error::TooManyBytes(bytes));
    }
    Ok(())
}

/// Checks the sizes of a picture.
pub(crate) fn check_sizes(width: u32, height: u32) -> Result<()> {
    let (short, long) = (width.min(height), width.max(height));
    if short == 0 || long > MAX_SIDE || u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(Error::TooManyPixels { width, height });
    }
    if long > short * MAX_ASPECT {
        return Err(Error::TooNarrow { width, height });
    }
    Ok(())
}
