//! Fuzzes locators: no text panics, and a locator that is written parses to an equal one, unless
//! its escapes make it too long.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat::locator::{Locator, MAX_LEN};

fuzz_target!(|text: &str| {
    if let Ok(locator) = text.parse::<Locator>() {
        let written = locator.to_string();
        if written.len() <= MAX_LEN {
            assert_eq!(written.parse::<Locator>().as_ref(), Ok(&locator), "{text:?}");
        }
    }
});
