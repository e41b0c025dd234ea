//! The spelling of bytes in byte-level vocabularies: one printable character each.

/// GPT-2's printable character for every byte: itself if it is printable Latin-1, else counted up from U+0100.
pub(super) const ALPHABET: [char; 256] = alphabet();

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn alphabet() -> [char; 256] {
    let mut characters = ['\0'; 256];
    let mut byte = 0;
    let mut beyond = 0x100;
    while byte < 256 {
        characters[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            beyond += 1;
            match char::from_u32(beyond - 1) {
                Some(character) => character,
                None => unreachable!(),
            }
        };
        byte += 1;
    }
    characters
}

/// Returns the byte of a character of [`ALPHABET`].
fn byte_of(character: char) -> Option<u8> {
    /// The bytes to which `ALPHABET` assigns characters from U+0100 on, in order.
    const BEYOND: [u8; 68] = {
        let mut bytes = [0; 68];
        let (mut byte, mut count) = (0, 0);
        while byte < 256 {
            if !is_printable(byte as u8) {
                bytes[count] = byte as u8;
                count += 1;
            }
            byte += 1;
        }
        bytes
    };
    match u8::try_from(character) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => BEYOND.get(character as usize - 0x100).copied(),
    }
}

/// Appends the bytes that `piece` spells. A piece with a character outside the alphabet stands for its own UTF-8.
pub(super) fn append_bytes(piece: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in piece.chars() {
        let Some(byte) = byte_of(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(piece.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// Returns the piece that spells `bytes`.
pub(super) fn spell(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|&byte| ALPHABET[usize::from(byte)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(ALPHABET[usize::from(byte)]), Some(byte));
        }
        assert_eq!(ALPHABET[usize::from(b' ')], 'Ġ');
        assert_eq!(ALPHABET[usize::from(b'\n')], 'Ċ');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('中'), None);
    }

    #[test]
    fn a_piece_outside_the_alphabet_spells_itself() {
        let mut bytes = Vec::new();
        append_bytes("Ġa", &mut bytes);
        append_bytes("a b", &mut bytes);
        assert_eq!(bytes, b" aa b");
    }
}
