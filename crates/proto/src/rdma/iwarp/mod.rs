//! iWARP: the wire below the verbs objects. RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA (RFC 5044, 6581).

pub(in crate::rdma) mod conn;
pub mod fpdu;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod rx;
pub(crate) mod rx_message;
pub mod start;
pub(crate) mod tx;
pub(crate) mod unexpected;
pub(crate) mod write_ack;
