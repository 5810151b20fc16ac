//! The store for programs.
