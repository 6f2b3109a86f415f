//! Host memory in proportion to data: tensors, files, lists of rows. It is asked for, so that having none is an error that says
//! how much was wanted and what for. Memory of devices has its own door, `Device::alloc`.

use crate::error::{Error, ErrorKind, Result};

/// The error that the host has no room for `count` elements of type `T`.
#[cold]
pub(crate) fn no_room<T>(what: &str, count: usize) -> Error {
    let bytes = count.saturating_mul(size_of::<T>());
    Error::new(what, ErrorKind::OutOfMemory { bytes, report: "on the host".to_string() })
}

/// An empty list with room for `count` elements, which messages say are for `what`.
pub fn reserved<T>(what: &str, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| no_room::<T>(what, count))?;
    Ok(list)
}

/// `count` times the same element.
pub fn filled<T: Clone>(what: &str, count: usize, value: T) -> Result<Vec<T>> {
    let mut list = reserved(what, count)?;
    list.resize(count, value);
    Ok(list)
}

/// All of an iterator that knows how many come.
pub fn collected<T>(what: &str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = reserved(what, items.len())?;
    list.extend(items);
    Ok(list)
}

/// Makes room for `more` elements behind those that are there, and for some after them.
pub fn grow<T>(what: &str, list: &mut Vec<T>, more: usize) -> Result<()> {
    let count = list.len().saturating_add(more);
    list.try_reserve(more).map_err(|_| no_room::<T>(what, count))
}

/// Whether there is room for another thread. A thread that starts and finds no memory for its own beginnings ends the process,
/// so that is looked for before.
pub fn room_for_a_thread() -> bool {
    /// The stack that a thread gets, and as much again.
    const ROOM: usize = 4 << 20;
    reserved::<u8>("thread", ROOM).is_ok()
}

/// A copy.
pub fn copied<T: Copy>(what: &str, items: &[T]) -> Result<Vec<T>> {
    collected(what, items.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_an_error_that_says_how_much() {
        for got in [reserved::<f32>("list", usize::MAX), filled("list", usize::MAX / 2, 1.0)] {
            let error = got.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory { .. }) && error.to_string().contains("list")
            );
        }
        let error = reserved::<f32>("list", 1 << 58).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { bytes, .. } if *bytes == 1 << 60), "{error}");
        assert_eq!(filled("list", 3, 7).unwrap(), [7; 3]);
        assert_eq!(collected("list", 0..3).unwrap(), [0, 1, 2]);
        assert_eq!(copied("list", &[1, 2]).unwrap(), [1, 2]);
        let mut list = vec![1u8];
        assert!(grow("list", &mut list, usize::MAX).is_err() && list == [1]);
        grow("list", &mut list, 100).unwrap();
        assert!(list.capacity() > 100);
    }
}
