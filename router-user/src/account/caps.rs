//! Whether this thread may use BPF at all: capabilities belong to threads.

use std::fs;

/// The capabilities that the programs need, with their numbers (`include/uapi/linux/capability.h`).
const NEEDED: [(&str, u32); 3] = [("CAP_BPF", 39), ("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38)];

/// Stands for each of them.
const CAP_SYS_ADMIN: u32 = 21;

/// The needed capabilities that this thread lacks, as one phrase; `None` = it has all.
pub(crate) fn missing() -> Option<String> {
    // Without /proc nothing can be said: the kernel's own answer to the first call then decides.
    missing_in(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn missing_in(status: &str) -> Option<String> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    let has = |cap: u32| effective & (1 << cap) != 0;
    if has(CAP_SYS_ADMIN) {
        return None;
    }
    let lacking: Vec<&str> = NEEDED.iter().filter(|(_, cap)| !has(*cap)).map(|(name, _)| *name).collect();
    (!lacking.is_empty()).then(|| format!("needs {}", lacking.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::missing_in;

    fn status(caps: u64) -> String {
        format!("Name:\tunlatch\nCapPrm:\t0000000000000000\nCapEff:\t{caps:016x}\nCapBnd:\t0\n")
    }

    #[test]
    fn names_exactly_what_is_missing() {
        assert_eq!(missing_in(&status(0)).unwrap(), "needs CAP_BPF and CAP_NET_ADMIN and CAP_PERFMON");
        assert_eq!(missing_in(&status(1 << 39)).unwrap(), "needs CAP_NET_ADMIN and CAP_PERFMON");
        assert_eq!(missing_in(&status(1 << 39 | 1 << 12)).unwrap(), "needs CAP_PERFMON");
        assert_eq!(missing_in(&status(1 << 39 | 1 << 12 | 1 << 38)), None);
        assert_eq!(missing_in(&status(1 << 21)), None, "CAP_SYS_ADMIN stands for all");
        assert_eq!(missing_in("no such line"), None);
    }
}
