//! Which row of the table a backend's address gets.
//!
//! By address, never by place in a configuration: routers with different lists share the rows. A row whose users
//! are gone keeps its address and totals, so that a restart finds them again; it is given to another address only
//! when every row was given away, no live process uses it and nothing is counted there. Invariant: no key leads to
//! a row while it is cleared.

use std::collections::HashMap;
use std::fs::File;

use aya::maps::{HashMap as BpfHashMap, MapData, MapError};
use router_common::limits::MAX_BACKENDS;
use router_common::{BackendAddr, BackendId};

use super::maps::{SharedTable, ids};
use super::pins::PinDir;

/// Why an address got no row.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Every row is in use.
    #[error("all {MAX_BACKENDS} backend rows of this host are in use")]
    Full,
    /// The map of addresses cannot be read or written.
    #[error("cannot use the BACKENDS map")]
    Map(#[from] MapError),
    /// The pin directory cannot be locked.
    #[error("cannot lock the pin directory")]
    Lock(#[from] std::io::Error),
}

/// Address → row, shared or private.
#[derive(Debug)]
pub(super) enum Keys {
    Pinned { map: BpfHashMap<MapData, BackendAddr, u32>, dir: PinDir },
    Private(HashMap<BackendAddr, u32>),
}

/// The rows this process uses.
#[derive(Debug)]
pub(super) struct Rows {
    keys: Keys,
    /// Registrations of this process, by row: two backends of a configuration may share an address.
    uses: Box<[u32; MAX_BACKENDS]>,
}

impl Rows {
    pub(super) fn new(keys: Keys) -> Self {
        Self { keys, uses: Box::new([0; MAX_BACKENDS]) }
    }

    /// The row of an address, used by this process from now on until as many calls of `unregister`.
    pub(super) fn register(
        &mut self,
        shared: &SharedTable,
        addr: BackendAddr,
        url: &str,
    ) -> Result<BackendId, RowError> {
        let _lock = self.keys.lock()?;
        let id = match self.keys.get(&addr)?.and_then(|row| BackendId::new(row as usize)) {
            Some(id) => id,
            None => self.allocate(shared, addr)?,
        };
        shared.table.add_ref(id, shared.slot);
        shared.table.set_name(id, if url.is_empty() { "?" } else { url });
        self.uses[id.index()] += 1;
        Ok(id)
    }

    /// Ends one use of a row. Its key and totals stay.
    pub(super) fn unregister(&mut self, shared: &SharedTable, id: BackendId) {
        let uses = &mut self.uses[id.index()];
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            shared.table.drop_ref(id, shared.slot);
        }
    }

    /// Gives up a row that no process uses and where nothing is counted: its address and totals are gone. False if it
    /// is still used or counted in.
    pub(super) fn forget(&mut self, shared: &SharedTable, id: BackendId) -> Result<bool, RowError> {
        let _lock = self.keys.lock()?;
        let table = &shared.table;
        if table.refs(id) != 0 || !table.is_quiet(id) {
            return Ok(false);
        }
        let row = id.index() as u32;
        let before = self.keys.take_row(row)?;
        // A foreign process may have connected before the key went: then the address keeps the row.
        if !table.is_quiet(id) {
            for addr in before {
                self.keys.insert(addr, row)?;
            }
            return Ok(false);
        }
        table.clear_row(id);
        table.set_name(id, "");
        Ok(true)
    }

    /// Every address that leads to a row.
    pub(super) fn addresses(&self) -> Result<HashMap<BackendAddr, u32>, MapError> {
        match &self.keys {
            Keys::Pinned { map, .. } => Ok(addresses(map)?.into_iter().collect()),
            Keys::Private(map) => Ok(map.clone()),
        }
    }

    fn allocate(&mut self, shared: &SharedTable, addr: BackendAddr) -> Result<BackendId, RowError> {
        let table = &shared.table;
        let is_free = |&id: &BackendId| table.refs(id) == 0 && table.is_quiet(id);
        let never_given = ids().filter(|&id| !table.is_named(id)).find(is_free);
        let candidates = never_given.into_iter().chain(ids().filter(is_free));
        for id in candidates {
            let row = id.index() as u32;
            let before = self.keys.take_row(row)?;
            // A foreign process may have connected before the key went: then the old address keeps the row.
            if !table.is_quiet(id) {
                for addr in before {
                    self.keys.insert(addr, row)?;
                }
                continue;
            }
            table.clear_row(id);
            self.keys.insert(addr, row)?;
            return Ok(id);
        }
        Err(RowError::Full)
    }
}

impl Keys {
    /// Keeps other processes from giving rows away.
    fn lock(&self) -> Result<Option<File>, RowError> {
        match self {
            Self::Pinned { dir, .. } => Ok(Some(dir.lock()?)),
            Self::Private(_) => Ok(None),
        }
    }

    fn get(&self, addr: &BackendAddr) -> Result<Option<u32>, MapError> {
        match self {
            Self::Pinned { map, .. } => match map.get(addr, 0) {
                Ok(row) => Ok(Some(row)),
                Err(MapError::KeyNotFound) => Ok(None),
                Err(error) => Err(error),
            },
            Self::Private(map) => Ok(map.get(addr).copied()),
        }
    }

    fn insert(&mut self, addr: BackendAddr, row: u32) -> Result<(), MapError> {
        match self {
            Self::Pinned { map, .. } => map.insert(addr, row, 0),
            Self::Private(map) => {
                map.insert(addr, row);
                Ok(())
            }
        }
    }

    /// Removes every key that leads to a row, and returns them.
    fn take_row(&mut self, row: u32) -> Result<Vec<BackendAddr>, MapError> {
        match self {
            Self::Pinned { map, .. } => {
                let leading = addresses(map)?.into_iter().filter(|&(_, r)| r == row).map(|(addr, _)| addr);
                let leading: Vec<_> = leading.collect();
                for addr in &leading {
                    map.remove(addr)?;
                }
                Ok(leading)
            }
            Self::Private(map) => Ok(map.extract_if(|_, r| *r == row).map(|(addr, _)| addr).collect()),
        }
    }
}

/// All entries of a pinned map of addresses.
pub(super) fn addresses(
    map: &BpfHashMap<MapData, BackendAddr, u32>,
) -> Result<Vec<(BackendAddr, u32)>, MapError> {
    map.iter().take(MAX_BACKENDS).collect()
}

#[cfg(test)]
mod tests {
    use super::{Keys, RowError, Rows};
    use crate::account::maps::{SharedTable, Table};
    use router_common::BackendAddr;
    use router_common::limits::MAX_BACKENDS;
    use router_policy::{InFlight, LoadTable};

    fn addr(port: u16) -> BackendAddr {
        BackendAddr::from_socket_addr(([127, 0, 0, 1], port).into())
    }

    fn fresh() -> (Rows, SharedTable) {
        let table = Table::private().unwrap();
        let slot = table.claim(1, 1, 0).unwrap();
        (Rows::new(Keys::Private(Default::default())), SharedTable { table, slot })
    }

    #[test]
    fn rows_are_given_in_order_and_one_address_has_one_row() {
        let (mut rows, shared) = fresh();
        let ids: Vec<_> = [1, 2, 1, 3].map(|p| rows.register(&shared, addr(p), "u").unwrap().index()).into();
        assert_eq!(ids, [0, 1, 0, 2]);
    }

    #[test]
    fn an_address_comes_back_to_its_row_and_the_last_use_frees_it() {
        let (mut rows, shared) = fresh();
        let id = rows.register(&shared, addr(1), "u").unwrap();
        rows.register(&shared, addr(1), "u").unwrap();
        rows.unregister(&shared, id);
        assert_ne!(shared.table.refs(id), 0, "still used once");
        rows.unregister(&shared, id);
        assert_eq!(shared.table.refs(id), 0);
        assert_eq!(rows.register(&shared, addr(2), "v").unwrap().index(), 1, "fresh rows go first");
        assert_eq!(rows.register(&shared, addr(1), "u").unwrap(), id);
    }

    #[test]
    fn a_row_is_forgotten_when_nobody_uses_it_and_nothing_is_counted_there() {
        let (mut rows, shared) = fresh();
        let id = rows.register(&shared, addr(1), "u").unwrap();
        assert!(!rows.forget(&shared, id).unwrap(), "it is used");
        rows.unregister(&shared, id);
        shared.publish(id, InFlight { requests: 1, ..InFlight::default() });
        assert!(!rows.forget(&shared, id).unwrap(), "a request is in flight there");
        shared.publish(id, InFlight::default());
        assert!(rows.forget(&shared, id).unwrap());
        assert!(!shared.table.is_named(id) && rows.addresses().unwrap().is_empty());
        assert_eq!(rows.register(&shared, addr(2), "v").unwrap(), id, "it is as if never given");
    }

    #[test]
    fn a_full_table_reuses_only_rows_without_users_and_counts() {
        let (mut rows, shared) = fresh();
        let all: Vec<_> =
            (0..MAX_BACKENDS as u16).map(|p| rows.register(&shared, addr(p), "u").unwrap()).collect();
        let refused = rows.register(&shared, addr(999), "new").unwrap_err();
        assert!(matches!(refused, RowError::Full));
        assert!(refused.to_string().contains("256"), "the message names the limit: {refused}");

        shared.publish(all[3], InFlight { requests: 1, ..InFlight::default() });
        rows.unregister(&shared, all[3]);
        assert!(rows.register(&shared, addr(999), "new").is_err(), "a request is still in flight there");
        shared.publish(all[3], InFlight::default());
        assert_eq!(rows.register(&shared, addr(999), "new").unwrap(), all[3]);
        assert_eq!(shared.table.name(all[3]).unwrap(), "new");
        assert!(rows.register(&shared, addr(3), "u").is_err(), "the old address lost its row");
    }
}
