//! Parses the sizes and times of the command line.

/// Parses a number of bytes from the command line. K and M (also KB and MB) are powers of 1000.
pub fn size(text: &str) -> Result<usize, String> {
    let unit = [("", 1), ("k", 1000), ("m", 1_000_000)];
    scaled(text, &unit, &["", "b"])
        .and_then(|n| usize::try_from(n).ok())
        .filter(|&n| n <= sprat_proto::rpc::MAX_MESSAGE)
        .ok_or_else(|| "expected bytes such as 100, 10KB or 1MB, at most 16 MiB".to_owned())
}

/// Parses a number of bytes of data from the command line. K, M and G (also KB, MB and GB) are
/// powers of 1000.
pub fn data(text: &str) -> Result<u64, String> {
    let units = [("", 1), ("k", 1000), ("m", 1_000_000), ("g", 1_000_000_000)];
    scaled(text, &units, &["", "b"])
        .filter(|&n| (1..=1_000_000_000_000).contains(&n))
        .ok_or_else(|| "expected bytes such as 10KB, 256MB or 4GB, at most 1000 GB".to_owned())
}

/// Parses a number with one of `units` behind it, which may end in one of `ends`.
pub fn scaled(text: &str, units: &[(&str, u64)], ends: &[&str]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim_start().to_ascii_lowercase();
    let factor = units.iter().find_map(|&(unit, factor)| {
        let rest = suffix.strip_prefix(unit)?;
        ends.contains(&rest).then_some(factor)
    });
    // The empty unit matches every suffix, so "k" is found only because "k" is no ending of the
    // empty unit.
    number.parse::<u64>().ok()?.checked_mul(factor?)
}

/// Parses a time in seconds, from 0.01 to 3600.
pub fn seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|s| (0.01..=3600.0).contains(s))
        .ok_or_else(|| "expected seconds from 0.01 to 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal() {
        for (text, bytes) in [("100", 100), ("1KB", 1000), ("10k", 10_000), ("1MB", 1_000_000)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert!(size("17MB").is_err(), "no message is longer than 16 MiB");
        assert_eq!(data("2GB"), Ok(2_000_000_000));
        assert!(data("0").is_err() && data("1001GB").is_err());
    }
}
