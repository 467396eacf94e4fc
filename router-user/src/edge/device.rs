//! The device and the program on it: attaching in native mode, else in generic mode, and taking off.
//!
//! A link is pinned as `link-<network namespace>-<index of the device>-<mode>`, so that a process that dies takes no
//! guard with it, and the next one finds it. Names of devices would not do: pins can have no dot in theirs. Nor would
//! the index alone: each network namespace counts its own devices, and containers may share the pins.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{ProgramError, Xdp};

use super::EdgeError;
use crate::account::{one_line, take_link_off};

/// How long to wait for a device whose program nobody has pinned any more: the kernel lets go of it a moment after its
/// last holder, within milliseconds. Another's program stays, and then the guard is late by this for nothing.
const BUSY_WAIT: Duration = Duration::from_millis(500);

/// How the program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the device's driver.
    Native,
    /// By the kernel after the driver: slower, on any device.
    Generic,
}

impl Mode {
    const ALL: [Self; 2] = [Self::Native, Self::Generic];

    /// As people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    const fn flag(self) -> XdpMode {
        match self {
            Self::Native => XdpMode::Driver,
            Self::Generic => XdpMode::Skb,
        }
    }
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// The kernel's number of the network namespace.
    pub netns: u64,
    /// The kernel's number of the device in it.
    pub ifindex: u32,
}

/// A pinned link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Which.
    pub id: DeviceId,
    /// How the program is run.
    pub mode: Mode,
    /// Where the link is pinned.
    pub path: PathBuf,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.netns, self.ifindex)
    }
}

impl FromStr for DeviceId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (netns, ifindex) = text.split_once('-').ok_or(())?;
        Ok(Self { netns: netns.parse().map_err(drop)?, ifindex: ifindex.parse().map_err(drop)? })
    }
}

impl Device {
    /// Its name; `None` if it is gone, or in another network namespace.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        if self.id.netns != netns().ok()? {
            return None;
        }
        rustix::net::netdevice::index_to_name(any_socket().ok()?, self.id.ifindex).ok()
    }

    /// What people call it.
    #[must_use]
    pub fn label(&self) -> String {
        self.name()
            .unwrap_or_else(|| format!("number {}, gone or in another network namespace", self.id.ifindex))
    }
}

/// The device of a name in this thread's network namespace.
pub(super) fn id(name: &str) -> Result<DeviceId, EdgeError> {
    let no_device = |source: io::Error| EdgeError::Device { name: name.to_owned(), source };
    let find = || Ok(rustix::net::netdevice::name_to_index(any_socket()?, name)?);
    let ifindex = find().map_err(no_device)?;
    Ok(DeviceId { netns: netns().map_err(no_device)?, ifindex })
}

fn netns() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Devices are asked for through a socket, whichever.
fn any_socket() -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Every pinned link, in order.
pub(super) fn pinned(dir: &Path) -> io::Result<Vec<Device>> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut devices = Vec::new();
    for entry in listed {
        devices.extend(of_pin(entry?.path()));
    }
    devices.sort_by_key(|device: &Device| device.id);
    Ok(devices)
}

fn of_pin(path: PathBuf) -> Option<Device> {
    let (device, mode) = path.file_name()?.to_str()?.strip_prefix("link-")?.rsplit_once('-')?;
    let (id, mode) = (device.parse().ok()?, Mode::ALL.into_iter().find(|known| known.as_str() == mode)?);
    Some(Device { id, mode, path })
}

/// Puts the program on a device: in place of what an earlier process left there, else natively, else generically.
/// Returns the mode, and why it is not native.
pub(super) fn attach(
    program: &mut Xdp,
    id: DeviceId,
    dir: &Path,
) -> Result<(Mode, Option<String>), EdgeError> {
    let left = pinned(dir).map_err(EdgeError::Links)?;
    for Device { mode, path, .. } in left.into_iter().filter(|device| device.id == id) {
        // No packet passes unseen meanwhile. Only a device that was made anew under its old number refuses.
        if replace(program, &path).is_ok() {
            return Ok((
                mode,
                (mode == Mode::Generic).then(|| "an earlier router attached it so".to_owned()),
            ));
        }
        take_link_off(&path).map_err(EdgeError::Links)?;
    }
    let until = Instant::now() + BUSY_WAIT;
    let native = match attach_when_free(program, id, Mode::Native, dir, until) {
        Ok(()) => return Ok((Mode::Native, None)),
        Err(error) => one_line(&error),
    };
    match attach_when_free(program, id, Mode::Generic, dir, until) {
        Ok(()) => Ok((Mode::Generic, Some(native))),
        Err(error) => Err(EdgeError::Attach { native, generic: one_line(&error) }),
    }
}

/// Attaches in one mode, and tries again while the device has a program: the other mode would be refused too, or be
/// taken where this one was to be had a moment later.
fn attach_when_free(
    program: &mut Xdp,
    id: DeviceId,
    mode: Mode,
    dir: &Path,
    until: Instant,
) -> Result<(), ProgramError> {
    loop {
        match attach_as(program, id, mode, dir) {
            Err(error) if is_busy(&error) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Whether the device has a program, in this mode or in the other.
fn is_busy(error: &ProgramError) -> bool {
    let ProgramError::SyscallError(refused) = error else { return false };
    matches!(refused.io_error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn replace(program: &mut Xdp, pin: &Path) -> Result<(), ProgramError> {
    let other = |error| ProgramError::IOError(io::Error::other(error));
    let link = FdLink::from(PinnedLink::from_pin(pin).map_err(other)?);
    let id = program.attach_to_link(XdpLink::try_from(link).map_err(other)?)?;
    // The pin keeps it.
    drop(program.take_link(id)?);
    Ok(())
}

fn attach_as(program: &mut Xdp, device: DeviceId, mode: Mode, dir: &Path) -> Result<(), ProgramError> {
    let other =
        |error: Box<dyn std::error::Error + Send + Sync>| ProgramError::IOError(io::Error::other(error));
    let id = program.attach_to_if_index(device.ifindex, mode.flag())?;
    let link = FdLink::try_from(program.take_link(id)?).map_err(|error| other(error.into()))?;
    link.pin(dir.join(format!("link-{device}-{}", mode.as_str()))).map_err(|error| other(error.into()))?;
    Ok(())
}
