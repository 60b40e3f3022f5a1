//! Where the image and the modules of a user's kernel are: of a file, of a build, of the running machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cache::FetchedKernel;
use crate::modules::Modules;

/// The images that a build makes, the one that boots anywhere first.
const BUILT: [&str; 2] = ["arch/x86/boot/bzImage", "vmlinux"];

/// A kernel's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    /// The bzImage, or the ELF file.
    pub image: PathBuf,
    /// Its modules.
    pub modules: Modules,
    /// The ELF file that its build has left beside the image, with symbols and perhaps debugging information.
    pub vmlinux: Option<PathBuf>,
}

/// There is no kernel where one was looked for.
#[derive(Debug, thiserror::Error)]
pub enum NoKernel {
    /// Nothing was built in a directory.
    #[error("{dir} holds no built kernel: neither {} nor {} is there", BUILT[0], BUILT[1])]
    NotBuilt {
        /// The directory.
        dir: PathBuf,
    },
    /// The running machine has no file of its kernel.
    #[error("this machine keeps no image of its kernel: neither {} nor {} is there", looked_for[0].display(), looked_for[1].display())]
    NotKept {
        /// Where it could be.
        looked_for: [PathBuf; 2],
    },
    /// The running machine does not say which kernel it has.
    #[error("cannot read the version of this machine's kernel")]
    Unnamed(#[from] io::Error),
}

impl KernelFiles {
    /// Those at `path`: a file, or a directory in which a kernel [was built](Self::built_in). A kernel that was fetched has
    /// its modules beside it.
    ///
    /// # Errors
    /// [`NoKernel::NotBuilt`].
    pub fn at(path: &Path) -> Result<Self, NoKernel> {
        if path.is_dir() {
            return Self::built_in(path);
        }
        let fetched = path.parent().and_then(|dir| FetchedKernel::at(dir).ok());
        let modules = fetched.map_or(Modules::Unknown, |kernel| Self::from(kernel).modules);
        Ok(Self { image: path.to_owned(), modules, vmlinux: None })
    }

    /// What was built in `dir`, which is the source's own directory or the one that `make O=DIR` names. Modules are those
    /// of its `modules.order`, or of `lib/modules/VERSION` in it, where `make INSTALL_MOD_PATH=DIR modules_install` puts
    /// them, or all files `*.ko` in it.
    ///
    /// # Errors
    /// [`NoKernel::NotBuilt`].
    pub fn built_in(dir: &Path) -> Result<Self, NoKernel> {
        let mut images = BUILT.iter().map(|image| dir.join(image));
        match images.find(|image| image.is_file()) {
            Some(image) => {
                let [_, vmlinux] = BUILT.map(|image| dir.join(image));
                let vmlinux = Some(vmlinux).filter(|vmlinux| *vmlinux != image && vmlinux.is_file());
                Ok(Self { image, modules: modules(dir), vmlinux })
            }
            None => Err(NoKernel::NotBuilt { dir: dir.to_owned() }),
        }
    }

    /// Those of the kernel that this machine runs.
    ///
    /// # Errors
    /// [`NoKernel::NotKept`], [`NoKernel::Unnamed`].
    pub fn of_this_machine() -> Result<Self, NoKernel> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Self::installed_below(Path::new("/"), release.trim())
    }

    /// Those of an installed kernel.
    fn installed_below(root: &Path, release: &str) -> Result<Self, NoKernel> {
        let modules = root.join("lib/modules").join(release);
        let looked_for = [root.join("boot").join(format!("vmlinuz-{release}")), modules.join("vmlinuz")];
        match looked_for.iter().find(|image| image.is_file()) {
            Some(image) => Ok(Self {
                image: image.clone(),
                modules: if modules.is_dir() { Modules::Below(modules) } else { Modules::Unknown },
                vmlinux: None,
            }),
            None => Err(NoKernel::NotKept { looked_for }),
        }
    }
}

impl From<FetchedKernel> for KernelFiles {
    fn from(kernel: FetchedKernel) -> Self {
        Self { image: kernel.image, modules: Modules::ForCommand(kernel.command_modules), vmlinux: None }
    }
}

/// The modules of a build.
fn modules(dir: &Path) -> Modules {
    if dir.join("modules.order").is_file() {
        return Modules::Built(dir.to_owned());
    }
    Modules::Below(installed(dir).unwrap_or_else(|| dir.to_owned()))
}

/// The directory of the installed modules: of the version that was built, or of the only one.
fn installed(dir: &Path) -> Option<PathBuf> {
    let versions = dir.join("lib/modules");
    if let Ok(release) = fs::read_to_string(dir.join("include/config/kernel.release")) {
        return Some(versions.join(release.trim())).filter(|version| version.is_dir());
    }
    let mut found =
        fs::read_dir(versions).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a directory with these files.
    fn found(name: &str, files: &[&str]) -> Result<(String, Modules), String> {
        let dir = std::env::temp_dir().join(format!("vmm-build-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for file in files {
            fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
            fs::write(dir.join(file), "6.12.0-mine\n").unwrap();
        }
        let tree = KernelFiles::at(&dir);
        fs::remove_dir_all(&dir).unwrap();
        let inside = |path: PathBuf| path.strip_prefix(&dir).unwrap().to_owned();
        let tree = tree.map_err(|error| error.to_string().replace(dir.to_str().unwrap(), "DIR"))?;
        let has_vmlinux = files.contains(&BUILT[0]) && files.contains(&BUILT[1]);
        assert_eq!(tree.vmlinux, has_vmlinux.then(|| dir.join(BUILT[1])));
        let modules = match tree.modules {
            Modules::Below(below) => Modules::Below(inside(below)),
            Modules::Built(dir) => Modules::Built(inside(dir)),
            other => other,
        };
        Ok((inside(tree.image).to_str().unwrap().to_owned(), modules))
    }

    #[test]
    fn image_and_modules_are_where_a_build_puts_them() {
        const BZ: &str = "arch/x86/boot/bzImage";
        const RELEASE: &str = "include/config/kernel.release";
        let below = |path: &str| Modules::Below(path.into());
        let cases: [(&[&str], &str, Modules); 7] = [
            (
                &[BZ, "vmlinux", "modules.order", "lib/modules/6.12.0-mine/a.ko"],
                BZ,
                Modules::Built("".into()),
            ),
            (&["vmlinux"], "vmlinux", below("")),
            (&[BZ, "drivers/a.ko"], BZ, below("")),
            (&[BZ, "lib/modules/6.1/a.ko"], BZ, below("lib/modules/6.1")),
            (&[BZ, "lib/modules/6.1/a.ko", "lib/modules/6.2/a.ko"], BZ, below("")),
            (
                &[BZ, RELEASE, "lib/modules/6.12.0-mine/a.ko", "lib/modules/6.2/a.ko"],
                BZ,
                below("lib/modules/6.12.0-mine"),
            ),
            (&[BZ, RELEASE, "lib/modules/6.1/a.ko"], BZ, below("")),
        ];
        for (n, (files, image, modules)) in cases.into_iter().enumerate() {
            assert_eq!(found(&n.to_string(), files), Ok((image.to_owned(), modules)), "{files:?}");
        }
        let refused = "DIR holds no built kernel: neither arch/x86/boot/bzImage nor vmlinux is there";
        assert_eq!(found("none", &["Makefile", "boot/bzImage"]), Err(refused.to_owned()));
    }

    #[test]
    fn an_installed_kernel_is_in_boot_or_beside_its_modules() {
        let dir = std::env::temp_dir().join(format!("vmm-installed-{}", std::process::id()));
        let modules = dir.join("lib/modules/6.1");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(dir.join("boot")).unwrap();
        let found = || KernelFiles::installed_below(&dir, "6.1");
        let none = found().unwrap_err().to_string();
        assert!(none.contains("boot/vmlinuz-6.1") && none.contains("lib/modules/6.1/vmlinuz"), "{none}");
        for image in [modules.join("vmlinuz"), dir.join("boot/vmlinuz-6.1")] {
            fs::write(&image, "").unwrap();
            let modules = Modules::Below(modules.clone());
            assert_eq!(found().unwrap(), KernelFiles { image, modules, vmlinux: None });
        }
        fs::remove_dir_all(&modules).unwrap();
        assert_eq!(found().unwrap().modules, Modules::Unknown);
        fs::remove_dir_all(&dir).unwrap();
    }
}
