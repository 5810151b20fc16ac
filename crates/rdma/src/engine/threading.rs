//! The threads that make progress for a device, and the ways in which a program's thread waits.

/// The threading of a device: the thread that makes progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Threading {
    /// The calling thread makes progress: posting sends; polling and waiting receive (run to
    /// completion). Nothing moves while the program makes no call.
    #[default]
    Caller,
    /// A thread of the device makes progress: posting leaves the work to it, polling takes its
    /// results. While the thread has no processor, the calling thread does the work.
    IoThread,
    /// A thread of the device receives and places payload; posting sends. While the thread has no
    /// processor, the calling thread receives.
    ReceiveThread,
    /// The calling thread makes progress, and a background thread that never polls receives while
    /// the program makes no call. The background thread starts with the first connection or
    /// listener.
    Background,
}

/// The way in which a thread of the program waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// The waiting thread polls for a while, then sleeps.
    Spin,
    /// The waiting thread sleeps at once.
    Sleep,
}
