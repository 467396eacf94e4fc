//! The guest's root: an archive of files in the form the kernel unpacks (cpio, "newc").

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::paths::find_program;
use crate::run;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive in memory.
#[derive(Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Initramfs {
    /// Adds an executable file at an absolute path, with the directories to it.
    pub(super) fn add(&mut self, path: &str, data: &[u8]) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            let directory = &path[..end];
            if self.directories.insert(directory.to_owned()) {
                self.entry(directory, DIRECTORY, &[]);
            }
        }
        self.entry(path, PROGRAM, data);
    }

    /// Adds a program of this machine, and the libraries it is linked with where it looks for them.
    ///
    /// # Errors
    /// When something of it cannot be read.
    pub(super) fn add_program(&mut self, path: &str, program: &Path, work: &Path) -> Result<()> {
        self.add(path, &read(&stripped(program, work)?)?);
        for library in libraries(&run::capture(Command::new("ldd").arg(program))?) {
            self.add(library, &read(Path::new(library))?);
        }
        Ok(())
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        // Inode, mode, owner, group, links, time, size, two devices, length of the name with its end, checksum.
        let size = data.len() as u32;
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.bytes.extend(b"070701");
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The program without its debugging tables, of which the guest has no use: two thirds of it. Without binutils it
/// is taken as it is.
fn stripped(program: &Path, work: &Path) -> Result<PathBuf> {
    let Some(strip) = find_program("strip") else { return Ok(program.to_owned()) };
    let to = work.join("stripped");
    run::capture(Command::new(strip).arg("--strip-debug").arg("-o").arg(&to).arg(program))?;
    Ok(to)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The files in what `ldd` prints: `name => /file (address)`, or `/file (address)` for the loader.
fn libraries(ldd: &str) -> Vec<&str> {
    let files = ldd.lines().filter_map(|line| line.trim().rsplit_once(" (")?.0.split(" => ").last());
    files.filter(|file| file.starts_with('/')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_ldd_found() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n\tlost.so => not found\n";
        assert_eq!(libraries(text), ["/lib/x/libc.so.6", "/lib64/ld.so.2"]);
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn an_archive_has_each_directory_once_and_is_aligned() {
        let mut archive = Initramfs::default();
        archive.add("/bin/a", b"12345");
        archive.add("/bin/b", b"");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> = text
            .split("070701")
            .skip(1)
            .map(|entry| {
                let name = &entry[104..];
                name.split('\0').next().unwrap().to_owned()
            })
            .collect();
        assert_eq!(names, ["bin", "bin/a", "bin/b", "TRAILER!!!"]);
        assert_eq!(bytes.len() % 4, 0);
        let a = text.find("bin/a").unwrap();
        assert_eq!(&text[a - 110..a - 96], "07070100000002", "the second entry");
        assert_eq!(&text[a - 56..a - 48], "00000005", "of five bytes");
        let data = text.find("12345").unwrap();
        assert_eq!((data % 4, data - a), (0, 6), "right behind its name, which ends at a multiple of four");
    }
}
