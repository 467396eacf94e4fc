//! Debian's kernels to run as guests: the image alone, for no program of ours needs a module.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::paths::Workspace;
use crate::setup::apt::PrivateApt;

/// The newest kernel of a release of Debian.
pub(crate) struct GuestKernel {
    /// Version it must begin with, so that the table says what runs.
    pub(crate) series: &'static str,
    suite: &'static str,
    /// Only in `test --long`.
    pub(crate) is_long: bool,
}

/// What is run, in this order.
pub(crate) const KERNELS: &[GuestKernel] = &[
    GuestKernel { series: "6.1", suite: "bookworm", is_long: false },
    GuestKernel { series: "5.10", suite: "bullseye", is_long: true },
    GuestKernel { series: "6.12", suite: "trixie", is_long: true },
    GuestKernel { series: "7", suite: "trixie-backports", is_long: true },
];

/// Depends on the newest image, which in newer releases depends on the package that holds it.
const META: &str = "linux-image-cloud-amd64";
const IMAGE_PACKAGES: [&str; 2] = ["linux-image-", "linux-binary-"];

impl GuestKernel {
    /// The image, fetched unless it is there. Its name is `vmlinuz-` and the kernel's release.
    ///
    /// # Errors
    /// There is no apt, or Debian's archive cannot be read or has no such kernel any more.
    pub(crate) fn ensure(&self, ws: &Workspace) -> Result<PathBuf> {
        let dir = ws.tools().join("kernels").join(self.series);
        if let Some(image) = self.image_in(&dir) {
            return Ok(image);
        }
        self.fetch(&dir).with_context(|| format!("no Linux {}", self.series))?;
        self.image_in(&dir).with_context(|| format!("Debian {} has no Linux {}", self.suite, self.series))
    }

    fn image_in(&self, dir: &Path) -> Option<PathBuf> {
        let begin = format!("vmlinuz-{}", self.series);
        let names = fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        names.into_iter().find(|path| is_of(&path.file_name().unwrap_or_default().to_string_lossy(), &begin))
    }

    /// Leaves the image of whichever version alone in `dir`.
    fn fetch(&self, dir: &Path) -> Result<()> {
        println!("  fetching Debian's Linux {} of {} (12 to 40 MB)", self.series, self.suite);
        let work = dir.with_file_name(format!("{}.tmp", self.series));
        fs::remove_dir_all(&work).ok();
        let apt = PrivateApt::new(&work.join("apt"), self.suite)?;
        let mut package = META.to_owned();
        for prefix in IMAGE_PACKAGES {
            package = apt.dependency(&package, prefix)?.unwrap_or(package);
        }
        let unpacked = work.join("root");
        apt.unpack(&package, &unpacked)?;
        let (release, image) =
            image_below(&unpacked).with_context(|| format!("Debian's {package} holds no image"))?;
        fs::remove_dir_all(dir).ok();
        fs::create_dir_all(dir)?;
        fs::rename(image, dir.join(format!("vmlinuz-{release}")))?;
        fs::remove_dir_all(&work)?;
        Ok(())
    }
}

/// The kernel's release and the file: `boot/vmlinuz-RELEASE`, since 7 `usr/lib/modules/RELEASE/vmlinuz`.
fn image_below(root: &Path) -> Option<(String, PathBuf)> {
    let names = |dir: &str| {
        let entries = fs::read_dir(root.join(dir)).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
    };
    let in_boot =
        names("boot").find_map(|(name, path)| Some((name.strip_prefix("vmlinuz-")?.to_owned(), path)));
    let beside_modules = || {
        let mut images = names("usr/lib/modules").map(|(release, path)| (release, path.join("vmlinuz")));
        images.find(|(_, image)| image.is_file())
    };
    in_boot.or_else(beside_modules)
}

/// Whether a name goes on after the series with another part: 6.1 is not 6.12.
fn is_of(name: &str, begin: &str) -> bool {
    name.strip_prefix(begin).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_where_either_packaging_has_it() {
        for (file, release) in
            [("boot/vmlinuz-6.1-cloud", "6.1-cloud"), ("usr/lib/modules/7.3-cloud/vmlinuz", "7.3-cloud")]
        {
            let root = std::env::temp_dir().join(format!("unlatch-image-{}-{release}", std::process::id()));
            let image = root.join(file);
            fs::create_dir_all(image.parent().unwrap()).unwrap();
            assert_eq!(image_below(&root), None);
            fs::write(&image, "").unwrap();
            assert_eq!(image_below(&root), Some((release.to_owned(), image)));
            fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn a_series_is_not_the_beginning_of_a_number() {
        assert!(is_of("vmlinuz-6.1.0-50-cloud-amd64", "vmlinuz-6.1"));
        assert!(is_of("vmlinuz-7.3.4+deb13-cloud-amd64", "vmlinuz-7"));
        assert!(!is_of("vmlinuz-6.12.107+deb13-cloud-amd64", "vmlinuz-6.1"));
        assert!(!is_of("vmlinuz-5.10.0", "vmlinuz-6.1"));
    }
}
