//! CRC32C (Castagnoli), the portable version: the oracle for the fast ones and what tests and the simulator use.

/// Continues a CRC32C: `crc` is the value so far (0 at the start), the result covers what came before and `bytes`.
pub type Crc32c = fn(crc: u32, bytes: &[u8]) -> u32;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82f6_3b78 } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

/// CRC32C by table, a byte at a time (RFC 3720 B.4 has test vectors).
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |c, &b| (c >> 8) ^ TABLE[((c ^ u32::from(b)) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn rfc_3720_vectors() {
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
    }
}
