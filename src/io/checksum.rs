//! Checksums of file formats.

/// The table of a polynomial, whose bits are in reverse order.
const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut bit) = (i as u32, 0);
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ polynomial } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

fn sum(table: &[u32; 256], bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |c, b| table[(c as u8 ^ b) as usize] ^ (c >> 8))
}

/// The checksum of zip, gzip and PNG.
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table(0xedb8_8320);
    sum(&TABLE, bytes)
}

/// Castagnoli's checksum, that of TFRecord files.
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table(0x82f6_3b78);
    sum(&TABLE, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_of_the_standard_text() {
        assert_eq!((crc32(b"123456789"), crc32c(b"123456789")), (0xcbf4_3926, 0xe306_9283));
        assert_eq!((crc32(b""), crc32c(b"")), (0, 0));
    }
}
