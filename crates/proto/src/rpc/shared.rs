//! What both halves of an endpoint use.

pub(super) mod grants;
pub(super) mod tx;
