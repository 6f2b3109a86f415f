//! Checksums of file formats.

/// Castagnoli's checksum, that of TFRecord files.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |c, b| TABLE[(c as u8 ^ b) as usize] ^ (c >> 8))
}

/// What each byte adds to the checksum.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut bit) = (i as u32, 0);
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82f6_3b78 } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_standard_text() {
        assert_eq!((crc32c(b"123456789"), crc32c(b"")), (0xe306_9283, 0));
    }
}
