//! Unpacked packages: where the bzImage, the modules and the debugging information are in them.
//!
//! The bzImage is `/boot/vmlinuz-VERSION`, or `/usr/lib/modules/VERSION/vmlinuz` where Debian splits images. Modules are
//! in `/lib/modules/VERSION/kernel`, or in `/usr/lib/modules/VERSION/kernel`. Debugging information of the kernel itself is in
//! `/usr/lib/debug/boot/vmlinux-VERSION`, or below `/usr/lib/debug` where the modules are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::apt::{AptError, run};

/// A directory that packages are unpacked into, one over the other.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Unpacks a package.
    pub(crate) fn add(&self, deb: &Path) -> Result<(), AptError> {
        run("dpkg-deb", |command| command.arg("-x").args([deb, &self.0])).map(drop)
    }

    /// The bzImage.
    pub(crate) fn image(&self) -> io::Result<Option<PathBuf>> {
        self.versioned("", "vmlinuz")
    }

    /// The kernel with debugging information.
    pub(crate) fn debug_info(&self) -> io::Result<Option<PathBuf>> {
        self.versioned("usr/lib/debug/", "vmlinux")
    }

    /// The file `boot/NAME-VERSION` below `root`, or `NAME` where the modules are.
    fn versioned(&self, root: &str, name: &str) -> io::Result<Option<PathBuf>> {
        let boot = self.entries(&format!("{root}boot"))?;
        let prefix = format!("{name}-");
        let versioned = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        };
        if let Some(file) = boot.into_iter().find(versioned) {
            return Ok(Some(file));
        }
        Ok(self.versions(root)?.into_iter().map(|version| version.join(name)).find(|path| path.is_file()))
    }

    /// The directory of the modules.
    pub(crate) fn modules(&self) -> io::Result<Option<PathBuf>> {
        Ok(self.versions("")?.into_iter().map(|version| version.join("kernel")).find(|path| path.is_dir()))
    }

    /// The directories below `root` that are named after a version.
    fn versions(&self, root: &str) -> io::Result<Vec<PathBuf>> {
        let entries = |dir| self.entries(&format!("{root}{dir}"));
        Ok([entries("lib/modules")?, entries("usr/lib/modules")?].concat())
    }

    /// What a directory holds; nothing when it is not there.
    fn entries(&self, dir: &str) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(self.0.join(dir)) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_and_modules_are_found_in_whole_and_split_packages() {
        let dir = std::env::temp_dir().join(format!("vmm-tree-{}", std::process::id()));
        let (whole, split) = (dir.join("whole"), dir.join("split"));
        fs::create_dir_all(whole.join("boot")).unwrap();
        fs::create_dir_all(whole.join("lib/modules/6.1/kernel")).unwrap();
        fs::write(whole.join("boot/config-6.1"), "").unwrap();
        fs::write(whole.join("boot/vmlinuz-6.1"), "").unwrap();
        let tree = Tree::new(whole.clone());
        assert_eq!(tree.image().unwrap(), Some(whole.join("boot/vmlinuz-6.1")));
        assert_eq!(tree.modules().unwrap(), Some(whole.join("lib/modules/6.1/kernel")));
        assert_eq!(tree.debug_info().unwrap(), None);
        let debug = whole.join("usr/lib/debug/boot");
        fs::create_dir_all(&debug).unwrap();
        fs::write(debug.join("vmlinux-6.1"), "").unwrap();
        assert_eq!(tree.debug_info().unwrap(), Some(debug.join("vmlinux-6.1")));

        let version = split.join("usr/lib/modules/7.2");
        fs::create_dir_all(&version).unwrap();
        let tree = Tree::new(split);
        assert_eq!((tree.image().unwrap(), tree.modules().unwrap()), (None, None), "an empty shell");
        fs::write(version.join("vmlinuz"), "").unwrap();
        assert_eq!(tree.image().unwrap(), Some(version.join("vmlinuz")));
        assert_eq!(tree.modules().unwrap(), None, "they are in another package");
        fs::create_dir(version.join("kernel")).unwrap();
        assert_eq!(tree.modules().unwrap(), Some(version.join("kernel")));
        fs::remove_dir_all(&dir).unwrap();
    }
}
