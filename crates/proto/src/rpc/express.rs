//! The short way, out and in: a message that is whole in one packet goes from the caller's hand into the driver, past the
//! queues of `output`, and from the driver into the caller's hand, past all that long messages, losses and repetitions need.
//!
//! ```text
//!   request ─► nothing waits, one packet, no slices ─► driver, then slot      else: slot, queue ─► output
//!   reply ───► the same ─────────────────────────────► driver, then slot *    else: slot, queue ─► output
//!   packet ──► whole message, all as expected ───────► event                  else: `client_input`, `server_input`
//!                                                         * none on a driver that loses nothing: no reply is kept
//! ```
//!
//! Drivers that lose nothing and lossy ones differ in little: a lossy one has times in the header and a checksum behind the
//! message, its replies are kept, and what it takes goes out with the turn's end, together with what else the turn brings. The
//! compiler knows the one from the other by `Datagrams::lossless`, and each has code of its own made of this.
//!
//! Always: each of these looks at everything first and changes something only if it is certain that it can do all of it; else
//! the ordinary way begins anew and says what is wrong. Messages to one peer leave in the order in which they were handed
//! in, whichever way they take. What is lost on the short way is repaired by the ordinary one, which finds everything as if it
//! had sent it itself.

mod arrive;
mod leave;
