//! The memory of a segment. The cleaner may share it with a helper thread for a while.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::{Deref, DerefMut};

/// The bytes of a segment. While they are shared they do not change: as mutable bytes they are
/// empty then, and marks of dead entries wait.
#[derive(Debug)]
pub struct Bytes(Inner);

#[derive(Debug)]
enum Inner {
    Own(Vec<u8>),
    Shared(Box<Shared>),
}

#[derive(Debug)]
struct Shared {
    bytes: Arc<Vec<u8>>,
    marks: Vec<Mark>,
}

/// A mark that a shared segment lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The entry at this offset is dead, its record apart.
    Dead(u32),
    /// The completion at this offset, or the record of the entry there, is dead.
    RecordDead(u32),
}

impl Bytes {
    /// Shares the bytes until [`Bytes::take_back`].
    pub(in crate::objects) fn share(&mut self) -> Arc<Vec<u8>> {
        if let Inner::Own(bytes) = &mut self.0 {
            let (bytes, marks) = (Arc::new(mem::take(bytes)), Vec::new());
            self.0 = Inner::Shared(Box::new(Shared { bytes, marks }));
        }
        match &self.0 {
            Inner::Own(_) => Arc::default(),
            Inner::Shared(shared) => Arc::clone(&shared.bytes),
        }
    }

    /// Ends [`Bytes::share`], and returns the marks that came meanwhile. It changes nothing while
    /// another thread has the bytes.
    pub(in crate::objects) fn take_back(&mut self) -> Vec<Mark> {
        let Inner::Shared(shared) = &mut self.0 else { return Vec::new() };
        match Arc::try_unwrap(mem::take(&mut shared.bytes)) {
            Ok(bytes) => {
                let marks = mem::take(&mut shared.marks);
                self.0 = Inner::Own(bytes);
                marks
            }
            Err(bytes) => {
                debug_assert!(false, "a job gives its sources back before it ends");
                shared.bytes = bytes;
                Vec::new()
            }
        }
    }

    /// Returns the marks that wait while the bytes are shared, or `None` if they are not.
    #[inline]
    pub(in crate::objects) fn waiting(&mut self) -> Option<&mut Vec<Mark>> {
        match &mut self.0 {
            Inner::Own(_) => None,
            Inner::Shared(shared) => Some(&mut shared.marks),
        }
    }

    /// Takes the bytes out, unless they are shared. None are left.
    pub(in crate::objects) fn take(&mut self) -> Vec<u8> {
        match &mut self.0 {
            Inner::Own(bytes) => mem::take(bytes),
            Inner::Shared(_) => Vec::new(),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Inner::Own(bytes))
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Own(bytes) => bytes,
            Inner::Shared(shared) => &shared.bytes,
        }
    }
}

impl DerefMut for Bytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Inner::Own(bytes) => bytes,
            Inner::Shared(_) => &mut [],
        }
    }
}
