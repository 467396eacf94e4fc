//! The table of keys, in the order of the help: what can be set, how often, by default to what, and what it means.

use super::settings::{Arity, Key};

mod data_plane;
mod fleet;
mod health;
mod host;
mod placement;

const fn one(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, value, default, arity: Arity::One, help }
}

const PARTS: [&[Key]; 5] = [fleet::KEYS, host::KEYS, data_plane::KEYS, health::KEYS, placement::KEYS];

const COUNT: usize = PARTS[0].len() + PARTS[1].len() + PARTS[2].len() + PARTS[3].len() + PARTS[4].len();

const ALL: [Key; COUNT] = {
    let mut all = [PARTS[0][0]; COUNT];
    let (mut part, mut at, mut put) = (0, 0, 0);
    while put < COUNT {
        if at == PARTS[part].len() {
            (part, at) = (part + 1, 0);
        } else {
            all[put] = PARTS[part][at];
            (at, put) = (at + 1, put + 1);
        }
    }
    all
};

/// Every key, in the order of the help.
pub const KEYS: &[Key] = &ALL;
