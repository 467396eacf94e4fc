//! Which backend is meant.

/// Row of a backend in `LOAD`, and its index in every table of the router. The kernel's table has
/// [`MAX_BACKENDS`](crate::limits::MAX_BACKENDS) rows; the policy alone takes up to [`BackendId::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(u16);

impl BackendId {
    /// Ids there can be.
    pub const COUNT: usize = 4096;

    /// The id of row `index`, or `None` from [`BackendId::COUNT`] on.
    #[must_use]
    pub const fn new(index: usize) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index as u16)) } else { None }
    }

    /// The row, for indexing. Always below [`BackendId::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
