//! Places of one kind, by number: runs, or marks.
//!
//! Grows by an eighth, not by doubling, up to its bound; freed places are used again, the last freed first, and given
//! back when none is in use.

use std::ops::{Index, IndexMut};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

/// Most places there can be; one less than the numbers, of which the last means none.
pub(super) const PLACES_MAX: usize = u32::MAX as usize - 1;

/// Bytes that are kept when nothing is left, so that a small index that empties now and then allocates nothing.
const BYTES_KEPT: usize = 128 << 10;

/// What has room for the number of another while it is free.
pub(super) trait Place {
    /// That room.
    fn next_free(&mut self) -> &mut u32;
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<T>,
    places_max: usize,
    /// The first free place, which leads to the others.
    free: u32,
    live: usize,
}

impl<T: Place> Slab<T> {
    /// At most so many places.
    pub(super) fn new(places_max: usize) -> Self {
        Self { places: Vec::new(), places_max: places_max.min(PLACES_MAX), free: NONE, live: 0 }
    }

    /// Places that may still be taken.
    pub(super) const fn room(&self) -> usize {
        self.places_max - self.live
    }

    /// Bytes it takes, unused room included.
    pub(super) const fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<T>()
    }

    /// The caller has seen that there is room.
    pub(super) fn take(&mut self, place: T) -> u32 {
        self.live += 1;
        if let Some(free) = self.places.get_mut(self.free as usize) {
            let mut was = std::mem::replace(free, place);
            return std::mem::replace(&mut self.free, *was.next_free());
        }
        let len = self.places.len();
        if len == self.places.capacity() {
            self.places.reserve_exact((len / 8).max(64).min(self.places_max.saturating_sub(len)).max(1));
        }
        self.places.push(place);
        len as u32
    }

    pub(super) fn give_back(&mut self, id: u32) {
        *self[id].next_free() = std::mem::replace(&mut self.free, id);
        self.live -= 1;
        if self.live == 0 && self.bytes() > BYTES_KEPT {
            *self = Self::new(self.places_max);
        }
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.places[id as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.places[id as usize]
    }
}
