//! Fuzzes locators: no text panics, and a locator that is written parses to an equal one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat::locator::Locator;

fuzz_target!(|text: &str| {
    if let Ok(locator) = text.parse::<Locator>() {
        let again = locator.to_string().parse::<Locator>();
        assert_eq!(again.as_ref(), Ok(&locator), "{text:?}");
    }
});
