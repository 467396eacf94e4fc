//! Network devices that programs are attached to where the cgroup is out of reach.
//!
//! Only those with an Ethernet header, also `lo`: the programs find the IP header behind it. A device is known by its
//! number and its network namespace: pins may be shared by processes of several, and each counts from 1.
#![expect(unsafe_code, reason = "the kind of a device is asked for with ioctl")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// A device of this process's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) ifindex: u32,
    /// The kernel's number of the namespace.
    pub(super) namespace: u64,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// None was named.
    #[error("no network device is named; --kernel-dev does")]
    None,
    /// There is none of this name.
    #[error("no network device {name}: {source}")]
    Missing {
        /// The name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its packets begin with the IP header, or another one.
    #[error("the packets of network device {0} have no Ethernet header")]
    NotEthernet(String),
}

/// The devices of these names, each once.
///
/// # Errors
/// [`DeviceError`], at the first that cannot be used.
pub(super) fn find(names: &[String]) -> Result<Vec<Device>, DeviceError> {
    let mut devices: Vec<Device> = Vec::new();
    for name in names {
        let device = one(name)?;
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    if devices.is_empty() { Err(DeviceError::None) } else { Ok(devices) }
}

fn one(name: &str) -> Result<Device, DeviceError> {
    let missing = |source| DeviceError::Missing { name: name.to_owned(), source };
    let socket = any_socket().map_err(missing)?;
    let ifindex = netdevice::name_to_index(&socket, name).map_err(|error| missing(error.into()))?;
    let namespace = namespace().map_err(missing)?;
    if !has_ethernet(&socket, name).map_err(missing)? {
        return Err(DeviceError::NotEthernet(name.to_owned()));
    }
    Ok(Device { name: name.to_owned(), ifindex, namespace })
}

/// The name of a device of this number in this process's network namespace.
pub(super) fn name(ifindex: u32) -> Option<String> {
    netdevice::index_to_name(any_socket().ok()?, ifindex).ok()
}

/// The kernel's number of this thread's network namespace.
pub(super) fn namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Devices are asked for through a socket, whichever.
fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn has_ethernet(socket: &OwnedFd, name: &str) -> io::Result<bool> {
    // SAFETY: an all-zero request is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request lives through the call, which writes the kind into it.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call wrote this member.
    let kind = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    Ok([libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&kind))
}
