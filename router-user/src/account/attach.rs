//! Loading one program after the other and making sure that it hangs where it should.
//!
//! What hangs there already in this very version stays; one of another version is replaced behind its link. Links are
//! pinned, so that they outlive the process.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{CgroupAttachMode, LinkOrder, Program, ProgramError, TcAttachType};

use super::cgroup::{Cgroup, Place};
use super::device::Device;
use super::error::one_line;
use super::links::{self, Spot};
use super::pins::PinDir;

/// Where programs are attached.
#[derive(Clone, Debug)]
pub(super) enum Site {
    /// To a cgroup.
    Cgroup(Place),
    /// To each of some network devices, both ways.
    Devices(Vec<Device>),
}

impl Site {
    /// The spots where links of this site lie.
    pub(super) fn spots(&self) -> Vec<Spot> {
        match self {
            Self::Cgroup(place) => vec![Spot::from(&place.attach)],
            Self::Devices(devices) => devices.iter().map(Spot::from).collect(),
        }
    }
}

/// Makes sure that a program of this very version sees the site, if it is a cgroup by an own link or by one further up.
///
/// # Errors
/// In one line, which program and why not.
pub(super) fn attach(ebpf: &mut Ebpf, name: &str, site: &Site, dir: &PinDir) -> Result<(), String> {
    let tag = load_program(ebpf, name).map_err(|error| failed(name, "load", &error))?;
    let hangs = |spot: &Spot| links::on(dir, spot, name).is_some_and(|link| link.tag == tag);
    match site {
        Site::Cgroup(place) => {
            if place.cgroups().any(|cgroup| hangs(&cgroup.into())) {
                return Ok(());
            }
            hang(ebpf, name, &Target::Cgroup(&place.attach), dir)
        }
        Site::Devices(devices) => {
            for device in devices {
                if !hangs(&device.into()) {
                    hang(ebpf, name, &Target::Device(device), dir)?;
                }
            }
            Ok(())
        }
    }
}

fn failed(name: &str, what: &str, error: &dyn std::error::Error) -> String {
    format!("{name} ({what}): {}", one_line(error))
}

/// One cgroup or device.
enum Target<'a> {
    Cgroup(&'a Cgroup),
    Device(&'a Device),
}

fn hang(ebpf: &mut Ebpf, name: &str, target: &Target<'_>, dir: &PinDir) -> Result<(), String> {
    let spot = match target {
        Target::Cgroup(cgroup) => Spot::from(*cgroup),
        Target::Device(device) => Spot::from(*device),
    };
    let failed = |what: &str, error: &dyn std::error::Error| failed(name, what, error);
    if let Some(old) = links::on(dir, &spot, name)
        && program_fd(ebpf, name).is_ok_and(|program| links::replace(&old, program).is_ok())
    {
        return Ok(());
    }
    let directory = links::place(dir, &spot);
    let pin = directory.join(name);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| failed("pin", &error))?;
    // The new link first, then away with one of another version: both at once count once, none would count nothing.
    let link = match target {
        Target::Cgroup(cgroup) => {
            let cgroup = std::fs::File::open(&cgroup.path).map_err(|error| failed("cgroup", &error))?;
            to_cgroup(ebpf, name, &cgroup).map_err(|error| failed("attach", &error))?
        }
        Target::Device(device) => to_device(ebpf, name, device).map_err(|error| {
            let on = format!("attach to device {}", device.name);
            let why = failed(&on, &error);
            if is_without_tcx(&error) {
                why + "; this kernel has no tcx links (6.6 or newer does)"
            } else {
                why
            }
        })?,
    };
    match std::fs::remove_file(&pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("unpin", &error)),
        _ => {}
    }
    link.pin(&pin).map_err(|error| failed("pin", &error))?;
    Ok(())
}

/// Passes a program through the verifier; returns the digest of its instructions.
fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<String, ProgramError> {
    let info = match program(ebpf, name)? {
        Program::SockOps(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSock(program) => program.load().and_then(|()| program.info()),
        Program::CgroupSkb(program) => program.load().and_then(|()| program.info()),
        Program::SchedClassifier(program) => program.load().and_then(|()| program.info()),
        _ => Err(ProgramError::UnexpectedProgramType),
    }?;
    Ok(format!("{:016x}", info.tag()))
}

fn to_cgroup(ebpf: &mut Ebpf, name: &str, cgroup: &std::fs::File) -> Result<FdLink, ProgramError> {
    // `Single` is right for links: the kernel itself allows several of them on a cgroup.
    let mode = CgroupAttachMode::Single;
    let link = match program(ebpf, name)? {
        Program::SockOps(program) => {
            let id = program.attach(cgroup, mode)?;
            program.take_link(id)?.try_into()
        }
        Program::CgroupSock(program) => {
            let id = program.attach(cgroup, mode)?;
            program.take_link(id)?.try_into()
        }
        Program::CgroupSkb(program) => {
            let direction = program.expected_attach_type().ok_or(ProgramError::UnexpectedProgramType)?;
            let id = program.attach(cgroup, direction, mode)?;
            program.take_link(id)?.try_into()
        }
        _ => return Err(ProgramError::UnexpectedProgramType),
    };
    link.map_err(|error| ProgramError::IOError(io::Error::other(error)))
}

/// Attaches by a link, behind whatever else is on the device. What an older kernel offers instead (clsact) would stay
/// on the device when a process is killed.
fn to_device(ebpf: &mut Ebpf, name: &str, device: &Device) -> Result<FdLink, ProgramError> {
    let is_egress = name.ends_with("egress") || name.ends_with("out");
    let direction = if is_egress { TcAttachType::Egress } else { TcAttachType::Ingress };
    let Program::SchedClassifier(program) = program(ebpf, name)? else {
        return Err(ProgramError::UnexpectedProgramType);
    };
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    let id = program.attach_with_options(&device.name, direction, options)?;
    program
        .take_link(id)?
        .try_into()
        .map_err(|error: aya::programs::links::LinkError| ProgramError::IOError(io::Error::other(error)))
}

/// Whether the kernel refused the link as it knows no such kind.
fn is_without_tcx(error: &ProgramError) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error() == Some(libc::EINVAL);
        }
        next = error.source();
    }
    false
}

/// Closes this process's descriptors of programs: what is attached stays, by its links.
pub(super) fn let_go(ebpf: &mut Ebpf) {
    for (_, program) in ebpf.programs_mut() {
        let _was_not_loaded = match program {
            Program::SockOps(program) => program.unload(),
            Program::CgroupSock(program) => program.unload(),
            Program::CgroupSkb(program) => program.unload(),
            Program::SchedClassifier(program) => program.unload(),
            _ => Ok(()),
        };
    }
}

fn program_fd<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<BorrowedFd<'a>, ProgramError> {
    match program(ebpf, name)? {
        Program::SockOps(program) => program.fd(),
        Program::CgroupSock(program) => program.fd(),
        Program::CgroupSkb(program) => program.fd(),
        Program::SchedClassifier(program) => program.fd(),
        _ => return Err(ProgramError::UnexpectedProgramType),
    }
    .map(AsFd::as_fd)
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, ProgramError> {
    ebpf.program_mut(name).ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::is_without_tcx;
    use aya::programs::ProgramError;
    use aya::sys::SyscallError;
    use std::io;

    #[test]
    fn a_kernel_that_knows_no_tcx_links_is_told_from_one_that_refuses() {
        let refused = |code| {
            let io_error = io::Error::from_raw_os_error(code);
            is_without_tcx(&ProgramError::from(SyscallError { call: "bpf_mprog_attach", io_error }))
        };
        assert!(refused(libc::EINVAL));
        assert!(!refused(libc::EPERM));
        assert!(!is_without_tcx(&ProgramError::NotLoaded));
    }
}
