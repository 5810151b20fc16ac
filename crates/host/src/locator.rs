//! Service locators, in RAMCloud's grammar: `protocol[+driver]:key=value,key="v";…`.

/// One parsed locator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locator {}
