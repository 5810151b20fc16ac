//! The end of a stack: its progress thread ends with the last handle.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::native::Interface;
use super::shared::Shared;

/// A stack with its progress thread, which end with the last handle.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    pub(super) fn new(interface: Interface, linger: Duration) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(interface)?);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sprat-tcp".to_owned());
        let thread = thread.spawn(move || of_thread.run(linger))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread was printed when it happened.
        let _ = thread.map(JoinHandle::join);
    }
}
