//! Start-up: every rule.
