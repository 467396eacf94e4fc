//! The hash of everything that decides the bytes of the BPF object: its sources, the locked crates it is built
//! from, and the recipe of the build.
//!
//! One piece of code for two users: xtask, which records the hash beside an object, and `router-user/build.rs`,
//! which includes this very file and embeds an object only where the record matches the checkout. So std alone.
//! FNV-1a with 64 bits: it has to tell a stale object from a fresh one, not to withstand an attacker, who could
//! replace the record just as well; a wrong match has a chance of 2^-64. Invariant: the result depends on file
//! contents and names only, never on where the checkout is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of rustc for the BPF target that no machine changes.
///
/// `bpf_target_arch` is fixed, because aya-ebpf would take the architecture of the build host and the object has
/// to be the same everywhere; no program here reads `pt_regs`, the only thing that depends on it.
pub(crate) const RUSTC_FLAGS: [&str; 3] =
    ["--cfg=bpf_target_arch=\"x86_64\"", "-Cdebuginfo=2", "-Clink-arg=--btf"];

/// The profile, in cargo's environment variables: an edit of the workspace's own profile cannot change the object.
pub(crate) const PROFILE: [(&str, &str); 7] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "false"),
];

/// The crate whose object this is about.
const ROOT_PACKAGE: &str = "router-ebpf";

/// Used without its optional dependencies, so those in the lock file do not count.
const BARE_PACKAGE: &str = "router-common";

/// The hash of the checkout at `root`, as 16 hexadecimal digits.
///
/// # Errors
/// When a source cannot be read.
pub(crate) fn of_checkout(root: &Path) -> io::Result<String> {
    let mut hash = Fnv::new();
    for flag in RUSTC_FLAGS {
        hash.part(flag.as_bytes());
    }
    for (name, value) in PROFILE {
        hash.part(name.as_bytes());
        hash.part(value.as_bytes());
    }
    for package in [ROOT_PACKAGE, BARE_PACKAGE] {
        let dir = root.join(package);
        add_file(&mut hash, root, &dir.join("Cargo.toml"))?;
        add_tree(&mut hash, root, &dir.join("src"))?;
    }
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for block in locked_blocks(&lock) {
        hash.part(block.as_bytes());
    }
    Ok(hash.hex())
}

/// Adds the files below `dir`, in the order of their names.
fn add_tree(hash: &mut Fnv, root: &Path, dir: &Path) -> io::Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() { add_tree(hash, root, &path)? } else { add_file(hash, root, &path)? }
    }
    Ok(())
}

fn add_file(hash: &mut Fnv, root: &Path, path: &Path) -> io::Result<()> {
    let name = path.strip_prefix(root).unwrap_or(path);
    hash.part(name.to_string_lossy().as_bytes());
    hash.part(&fs::read(path)?);
    Ok(())
}

/// The lock file's entries of the crates the object is built from, in the order of the file.
fn locked_blocks(lock: &str) -> Vec<&str> {
    let blocks: Vec<&str> = lock.split("[[package]]").skip(1).map(str::trim).collect();
    let mut reached = BTreeSet::new();
    let mut open = vec![ROOT_PACKAGE];
    while let Some(name) = open.pop() {
        for (at, block) in blocks.iter().enumerate() {
            if is_named(block, name) && reached.insert(at) && package_name(block) != Some(BARE_PACKAGE) {
                open.extend(dependencies(block));
            }
        }
    }
    // Only the entry's head of the bare package: the rest is the list of dependencies that do not count.
    reached
        .into_iter()
        .map(|at| match package_name(blocks[at]) {
            Some(BARE_PACKAGE) => blocks[at].split("dependencies").next().unwrap_or_default(),
            _ => blocks[at],
        })
        .collect()
}

/// Whether a lock entry is the one a dependency line means: `name`, or `name version` where several are locked.
fn is_named(block: &str, dependency: &str) -> bool {
    let mut words = dependency.split(' ');
    words.next() == package_name(block)
        && words.next().is_none_or(|version| quoted(block, "version") == Some(version))
}

fn package_name(block: &str) -> Option<&str> {
    quoted(block, "name")
}

fn quoted<'a>(block: &'a str, key: &str) -> Option<&'a str> {
    block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
}

fn dependencies(block: &str) -> impl Iterator<Item = &str> {
    block.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","))
}

/// FNV-1a, 64 bits.
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds one part with its length, so that two parts cannot be mistaken for others with the same joined text.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    pub(crate) fn hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"version = 4

[[package]]
name = "a"
version = "1.0.0"

[[package]]
name = "aya"
version = "0.14.0"
dependencies = [
 "libc",
]

[[package]]
name = "b"
version = "1.0.0"

[[package]]
name = "b"
version = "2.0.0"
dependencies = [
 "a",
]

[[package]]
name = "router-common"
version = "0.1.0"
dependencies = [
 "aya",
]

[[package]]
name = "router-ebpf"
version = "0.1.0"
dependencies = [
 "b 2.0.0",
 "router-common",
]
"#;

    #[test]
    fn the_lock_counts_only_what_the_object_is_built_from() {
        let blocks = locked_blocks(LOCK);
        let names: Vec<_> =
            blocks.iter().map(|block| (package_name(block), quoted(block, "version"))).collect();
        let want = [("a", "1.0.0"), ("b", "2.0.0"), ("router-common", "0.1.0"), ("router-ebpf", "0.1.0")];
        assert_eq!(names, want.map(|(name, version)| (Some(name), Some(version))));
        assert!(!blocks.join("").contains("aya"), "optional dependencies of router-common do not count");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut hash = Fnv::new();
        hash.bytes(b"foobar");
        assert_eq!(hash.hex(), "85944171f73967e8", "the published test vector");
    }

    #[test]
    fn parts_do_not_run_together() {
        let of = |parts: [&str; 2]| {
            let mut hash = Fnv::new();
            for part in parts {
                hash.part(part.as_bytes());
            }
            hash.hex()
        };
        assert_ne!(of(["ab", "c"]), of(["a", "bc"]));
    }

    #[test]
    fn the_hash_moves_with_a_source_and_not_with_the_place() {
        let [one, two] = ["one", "two"].map(|name| {
            let root = std::env::temp_dir().join(format!("unlatch-hash-{}-{name}", std::process::id()));
            for package in [ROOT_PACKAGE, BARE_PACKAGE] {
                fs::create_dir_all(root.join(package).join("src/x")).unwrap();
                fs::write(root.join(package).join("Cargo.toml"), package).unwrap();
                fs::write(root.join(package).join("src/x/lib.rs"), "// a").unwrap();
            }
            fs::write(root.join("Cargo.lock"), LOCK).unwrap();
            root
        });
        let before = of_checkout(&one).unwrap();
        assert_eq!(before, of_checkout(&two).unwrap(), "the place does not count");
        fs::write(two.join("router-common/src/x/lib.rs"), "// b").unwrap();
        assert_ne!(before, of_checkout(&two).unwrap(), "a changed source counts");
        for root in [one, two] {
            fs::remove_dir_all(root).unwrap();
        }
    }
}
