//! A router of another version takes over: its programs go behind the pinned links.
#![expect(unsafe_code, reason = "a program of another version is made with the bpf system call")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use router_user::account::Link;
use router_user::account::view::pinned;

use crate::sandbox::{Sandbox, name, run};
use crate::world::{Backend, PROGRAMS, account, wait_row};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;
const CGROUP_SKB: u32 = 8;
const INET_EGRESS: u32 = 1;

/// The start of the attributes of each command, as numbers of 32 bits.
fn bpf(command: libc::c_int, attributes: &[u32]) -> libc::c_long {
    // SAFETY: the attributes live through the call, which only reads them and what they point to.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    assert!(done >= 0, "bpf command {command}: {}", io::Error::last_os_error());
    done
}

fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: a descriptor that was just made, and that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }
}

/// Opens whatever is pinned there.
pub(crate) fn open_pin(pin: &Path) -> OwnedFd {
    let path = CString::new(pin.as_os_str().as_bytes()).unwrap();
    let [low, high] = halves(path.as_ptr() as u64);
    owned(bpf(BPF_OBJ_GET, &[low, high, 0, 0]))
}

/// Puts the program of one link behind another, in place of the one that is there.
pub(crate) fn put_behind(link: &Link, of: &Link) {
    let program = owned(bpf(BPF_PROG_GET_FD_BY_ID, &[of.program_id, 0, 0]));
    let link = open_pin(&link.path);
    bpf(BPF_LINK_UPDATE, &[link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0]);
}

/// A program that passes every packet and counts nothing, linked to a cgroup and pinned: an older version's.
fn pin_an_older_egress(cgroup: &Path, pin: &Path) {
    // r0 = 1; exit
    let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
    let licence = c"GPL";
    let [i, l] = [instructions.as_ptr() as u64, licence.as_ptr() as u64].map(halves);
    let mut load = [0_u32; 18];
    load[..6].copy_from_slice(&[CGROUP_SKB, instructions.len() as u32, i[0], i[1], l[0], l[1]]);
    load[17] = INET_EGRESS;
    let program = owned(bpf(BPF_PROG_LOAD, &load));
    let cgroup = fs::File::open(cgroup).unwrap();
    let target = [program.as_raw_fd() as u32, cgroup.as_raw_fd() as u32, INET_EGRESS, 0];
    let link = owned(bpf(BPF_LINK_CREATE, &target));
    let path = CString::new(pin.as_os_str().as_bytes()).unwrap();
    let [low, high] = halves(path.as_ptr() as u64);
    bpf(BPF_OBJ_PIN, &[low, high, link.as_raw_fd() as u32, 0]);
}

fn link(sandbox: &Sandbox, program: &str) -> Link {
    let links = pinned(&sandbox.pin_dir()).unwrap().links;
    links.into_iter().find(|link| link.program == program).unwrap()
}

#[test]
fn a_program_of_another_version_is_replaced_behind_its_link() {
    run(name!(), |sandbox| {
        drop(account(sandbox));
        let ours = link(sandbox, "phase_egress");
        fs::remove_file(&ours.path).unwrap();
        pin_an_older_egress(&sandbox.cgroup, &ours.path);
        let older = link(sandbox, "phase_egress");
        let untouched = link(sandbox, "inflight_sockops");
        assert_ne!(older.tag, ours.tag);

        let account = account(sandbox);
        let now = link(sandbox, "phase_egress");
        assert_eq!((now.id, &now.tag), (older.id, &ours.tag), "the same link, the new program");
        assert_eq!(link(sandbox, "inflight_sockops"), untouched, "what is of this version stays");
        assert_eq!(pinned(&sandbox.pin_dir()).unwrap().links.len(), PROGRAMS.len());
        let backend = Backend::new(&account, "127.0.0.1");
        let (mut ours, _theirs) = backend.connect();
        io::Write::write_all(&mut ours, b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n").unwrap();
        wait_row(&account, backend.id, |row| row.awaiting == 1);
    });
}
