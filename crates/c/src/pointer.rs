//! Arguments of C functions: pointers with the checks that a callee can make.
//!
//! Each type wraps one pointer. Its field is private and no function here makes one that is not
//! null from an address, so that a value of it can only come from C (or, for [`Memory`], from the
//! allocator). The header states what the caller promises of each pointer: null, or a live object
//! of its type that stays unchanged during the call. The methods rely on that and are safe.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::status::{Failure, Status};

/// The first bytes of a value that a structure with a size has at least: the size itself.
const SIZE: usize = size_of::<usize>();

/// The most bytes of a structure with a size. A larger size is that of uninitialised memory.
const SIZE_MOST: usize = 4096;

/// Bytes that the caller lends, such as a key.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bytes(*const c_void);

impl Bytes {
    /// Returns the bytes, `length` of them, or what `too_long` makes of more than `most`.
    #[inline]
    pub(crate) fn of(
        &self,
        length: usize,
        most: usize,
        too_long: impl FnOnce(usize) -> Failure,
    ) -> Result<&[u8], Failure> {
        if length > isize::MAX as usize {
            return Err(Failure::invalid(format!("no memory has {length} bytes")));
        }
        if length > most {
            return Err(too_long(length));
        }
        if length == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(Failure::invalid(format!("a null pointer has {length} bytes")));
        }
        // SAFETY: The caller of the C function guarantees `length` bytes at the pointer.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), length) })
    }
}

/// A text with a zero byte at its end.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The null pointer.
    pub(crate) const NULL: Self = Self(ptr::null());

    /// Returns the text if it is UTF-8, or `None` for the null pointer.
    pub(crate) fn optional(&self, what: &str) -> Result<Option<&str>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: The caller of the C function guarantees a text with a zero byte at its end.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(Some).map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
    }

    /// Returns the text if it is UTF-8.
    pub(crate) fn required(&self, what: &str) -> Result<&str, Failure> {
        self.optional(what)?.ok_or_else(|| null(what))
    }
}

/// A place for a result. May be null.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Fails if the pointer is null.
    pub(crate) fn require(&self, what: &str) -> Result<(), Failure> {
        if self.0.is_null() { Err(null(what)) } else { Ok(()) }
    }

    /// Writes the result, unless the pointer is null.
    #[inline]
    pub(crate) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: The caller of the C function guarantees room for a `T`.
            unsafe { self.0.write(value) };
        }
    }
}

/// A place for a pointer to an object of the library.
#[repr(transparent)]
pub(crate) struct OutHandle<T>(*mut *mut T);

impl<T: Send + Sync> OutHandle<T> {
    /// Writes the null pointer there. Fails if there is no place.
    pub(crate) fn clear(&self, what: &str) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(null(what));
        }
        // SAFETY: The caller of the C function guarantees room for a pointer.
        unsafe { self.0.write(ptr::null_mut()) };
        Ok(())
    }

    /// Gives the object to the caller.
    pub(crate) fn give(&self, object: T) {
        if !self.0.is_null() {
            // SAFETY: The caller of the C function guarantees room for a pointer.
            unsafe { self.0.write(Box::into_raw(Box::new(object))) };
        }
    }
}

/// An object of the library that the caller has. Several threads may have it.
#[repr(transparent)]
pub(crate) struct Handle<T>(*const T);

impl<T: Send + Sync> Handle<T> {
    /// Returns the object.
    #[inline]
    pub(crate) fn required(&self, what: &str) -> Result<&T, Failure> {
        // SAFETY: The caller of the C function guarantees an object that [`OutHandle::give`] gave
        // and that is not taken back before the call ends.
        unsafe { self.0.as_ref() }.ok_or_else(|| null(what))
    }
}

/// An object of the library that the caller gives back. May be null.
#[repr(transparent)]
pub(crate) struct OwnedHandle<T>(*mut T);

impl<T: Send + Sync> OwnedHandle<T> {
    /// Takes the object back.
    pub(crate) fn take(self) -> Option<Box<T>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: The caller of the C function guarantees an object that [`OutHandle::give`] gave,
        // and does not use it again.
        Some(unsafe { Box::from_raw(self.0) })
    }
}

/// An array that the caller lends, to read it or to set it.
#[repr(transparent)]
pub(crate) struct Array<T>(*mut T);

impl<T: Copy> Array<T> {
    /// Fails if the pointer is null and `count` is not 0, or no memory has `count` elements.
    fn check(&self, count: usize, what: &str) -> Result<(), Failure> {
        if count > isize::MAX as usize / size_of::<T>() {
            return Err(Failure::invalid(format!("no memory has {count} of {what}")));
        }
        if self.0.is_null() && count != 0 { Err(null(what)) } else { Ok(()) }
    }

    /// Returns the elements.
    pub(crate) fn slice(&self, count: usize, what: &str) -> Result<&[T], Failure> {
        self.check(count, what)?;
        if count == 0 {
            return Ok(&[]);
        }
        // SAFETY: The caller of the C function guarantees `count` elements at the pointer.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }

    /// Returns the elements, to set them.
    pub(crate) fn slice_mut(&mut self, count: usize, what: &str) -> Result<&mut [T], Failure> {
        self.check(count, what)?;
        if count == 0 {
            return Ok(&mut []);
        }
        // SAFETY: The caller of the C function guarantees `count` elements at the pointer, which
        // nothing else uses during the call. The borrow of `self` keeps other slices away.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }
}

/// A structure that begins with its size, so that it can grow. May be null.
#[repr(transparent)]
pub(crate) struct Structure<T>(*const T);

impl<T: Plain> Structure<T> {
    /// Returns a copy of the structure. Fields that the caller does not know are those of the
    /// default. Returns the default for the null pointer.
    pub(crate) fn copied(&self, what: &str) -> Result<T, Failure> {
        let mut copy = T::default();
        if self.0.is_null() {
            return Ok(copy);
        }
        let size = self.size(what)?;
        // SAFETY: The caller of the C function guarantees `size` bytes, all of them initialised.
        let all = unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), size) };
        let (known, rest) = all.split_at(size.min(size_of::<T>()));
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Failure::invalid(format!("{what} has fields that this library lacks")));
        }
        let to = ptr::from_mut(&mut copy).cast::<u8>();
        // SAFETY: `copy` has room for `known`. Every pattern of bits is a `T`, by its trait.
        unsafe { ptr::copy_nonoverlapping(known.as_ptr(), to, known.len()) };
        Ok(copy)
    }
}

impl<T: Plain> Structure<T> {
    /// Returns the size that the structure begins with.
    fn size(&self, what: &str) -> Result<usize, Failure> {
        if self.0.is_null() {
            return Err(null(what));
        }
        // SAFETY: The caller of the C function guarantees a structure whose first field is its
        // size.
        let size = unsafe { self.0.cast::<usize>().read() };
        if (SIZE..=SIZE_MOST).contains(&size) {
            return Ok(size);
        }
        Err(Failure::invalid(format!("the size of {what} is {size} bytes")))
    }
}

/// A structure that begins with its size, whose other fields the call sets.
#[repr(transparent)]
pub(crate) struct StructureOut<T>(*mut T);

impl<T: Plain> StructureOut<T> {
    /// Writes the fields of `value` that the caller knows. Sets to 0 those that this library lacks.
    pub(crate) fn set(&self, value: &T, what: &str) -> Result<(), Failure> {
        let size = Structure(self.0.cast_const()).size(what)?;
        let known = size.min(size_of::<T>()) - SIZE;
        let from = ptr::from_ref(value).cast::<u8>();
        // SAFETY: The size lies within the structures, which have `known` bytes behind it.
        let (from, to) = unsafe { (from.add(SIZE), self.0.cast::<u8>().add(SIZE)) };
        // SAFETY: The caller of the C function guarantees `size` bytes that nothing else uses.
        unsafe { ptr::copy_nonoverlapping(from, to, known) };
        // SAFETY: The rest of these bytes lies behind the ones just written.
        unsafe { to.add(known).write_bytes(0, size - SIZE - known) };
        Ok(())
    }
}

/// Structures of integers and pointers alone, without padding, whose first field is a `usize`.
///
/// # Safety
/// Every pattern of bits is a value of the type.
pub(crate) unsafe trait Plain: Copy + Default {}

/// Memory of the caller for a value.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Buffer(*mut c_void);

impl Buffer {
    /// Returns true for the null pointer.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Fails if the pointer is null and `room` is not 0.
    pub(crate) fn check(&self, room: usize) -> Result<(), Failure> {
        if self.0.is_null() && room != 0 { Err(null("the buffer")) } else { Ok(()) }
    }

    /// Copies the first `room` bytes of a value there. Returns false if the value has more.
    pub(crate) fn fill(&self, room: usize, value: &[u8]) -> bool {
        let copied = room.min(value.len());
        if copied > 0 && !self.0.is_null() {
            // SAFETY: The caller of the C function guarantees `room` bytes that nothing else uses.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), self.0.cast(), copied) };
        }
        value.len() <= room
    }

    /// Returns the buffer as the place of a value.
    pub(crate) fn memory(self) -> Memory {
        Memory(self.0)
    }
}

/// Memory that C's allocator gave, for the caller to free, or a buffer of the caller. May be null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Memory(*mut c_void);

impl Memory {
    /// The null pointer.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// Copies bytes, with a zero byte behind them, to new memory.
    pub(crate) fn copy(bytes: &[u8]) -> Result<Self, Failure> {
        let memory = Self::new(bytes.len() + 1)?;
        let to = memory.0.cast::<u8>();
        // SAFETY: The new memory has room for all bytes, and one more.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        // SAFETY: The last byte of the new memory lies there.
        unsafe { to.add(bytes.len()).write(0) };
        Ok(memory)
    }

    /// Copies elements to new memory.
    pub(crate) fn copy_all<T: Copy>(elements: &[T]) -> Result<Self, Failure> {
        // The allocator aligns memory for every type of C.
        let memory = Self::new(size_of_val(elements).max(1))?;
        // SAFETY: The new memory has room for all elements.
        unsafe {
            ptr::copy_nonoverlapping(elements.as_ptr(), memory.0.cast::<T>(), elements.len())
        };
        Ok(memory)
    }

    fn new(size: usize) -> Result<Self, Failure> {
        // SAFETY: The function may be called at any time, with any size.
        let memory = unsafe { libc::malloc(size) };
        if memory.is_null() { Err(Failure::of(Status::NoMemory)) } else { Ok(Self(memory)) }
    }

    /// Returns true if this memory is that buffer.
    pub(crate) fn is(&self, buffer: Buffer) -> bool {
        self.0 == buffer.0
    }

    /// Frees the memory. The null pointer is allowed.
    ///
    /// The type is `Copy`, so the compiler does not see a second free: as in C, its caller takes
    /// care of that.
    pub(crate) fn free(self) {
        // SAFETY: The memory is that of [`Memory::new`], and the caller of the C function does not
        // use it again.
        unsafe { libc::free(self.0) };
    }
}

/// Makes the failure of a call that lacks a pointer.
#[cold]
fn null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is a null pointer"))
}
