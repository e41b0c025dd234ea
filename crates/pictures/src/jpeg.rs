//! Whether a JPEG file is complete: its decoder fills what is missing with gray.

const START_OF_SCAN: u8 = 0xda;
const END: u8 = 0xd9;

/// Returns whether the segments of a JPEG file end with an end marker. Bytes after it are ignored.
pub(crate) fn has_end(bytes: &[u8]) -> bool {
    // After the start marker.
    let mut place = 2;
    while let Some((marker, after)) = next_marker(bytes, place) {
        place = match marker {
            END => return true,
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => after,
            _ => match bytes.get(after..after + 2) {
                Some(&[high, low]) => after + usize::from(u16::from_be_bytes([high, low])).max(2),
                _ => return false,
            },
        };
        if marker == START_OF_SCAN {
            place = scan_end(bytes, place);
        }
    }
    false
}

/// Returns the next marker from `place` on, and the place after it.
fn next_marker(bytes: &[u8], mut place: usize) -> Option<(u8, usize)> {
    loop {
        let pair = bytes.get(place..place + 2)?;
        if pair[0] == 0xff && !matches!(pair[1], 0 | 0xff) {
            return Some((pair[1], place + 2));
        }
        place += 1;
    }
}

/// Returns the place of the first marker after the data of a scan.
fn scan_end(bytes: &[u8], mut place: usize) -> usize {
    while let Some(pair) = bytes.get(place..place + 2) {
        // A zero says that 0xff is data; restart markers are within the data.
        if pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff) {
            return place;
        }
        place += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_marker_of_the_outer_picture_counts() {
        // A segment with the end marker of a thumbnail, a scan with data and a restart marker.
        let whole = [
            0xff, 0xd8, 0xff, 0xe1, 0, 6, 0xff, 0xd9, 1, 2, 0xff, 0xda, 0, 3, 0, 7, 0xff, 0, 8,
            0xff, 0xd0, 9, 0xff, 0xd9,
        ];
        assert!(has_end(&whole));
        for length in 0..whole.len() {
            assert!(!has_end(&whole[..length]), "{length}");
        }
        let padded: Vec<u8> = whole.iter().copied().chain([1, 2, 3]).collect();
        assert!(has_end(&padded));
    }
}
