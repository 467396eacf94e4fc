//! Which backend is meant.

use crate::limits::MAX_BACKENDS;

/// Row of a backend in `LOAD`, and its index in every table of the router. Below [`MAX_BACKENDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(u16);

impl BackendId {
    /// The id of row `index`, or `None` beyond the last row.
    #[must_use]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_BACKENDS { Some(Self(index as u16)) } else { None }
    }

    /// The row, for indexing. Always below [`MAX_BACKENDS`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
