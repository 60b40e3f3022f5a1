//! The kernels that are known by name.

/// A kernel that `cargo xtask setup` fetches: unmodified, as Debian ships it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The series, and the name that users know the kernel by: `6.12`.
    pub name: &'static str,
    /// Debian packages that stand for the newest image of a series, by preference. Which series one stands for
    /// differs between Debian releases, so the first that leads to an image of this series is taken.
    pub packages: &'static [&'static str],
}

/// Every kernel that is fetched and tested; adding one is adding an entry.
pub const KERNELS: &[Kernel] = &[
    DEFAULT_KERNEL,
    Kernel { name: "6.1", packages: &["linux-image-cloud-amd64", "linux-image-6.1-cloud-amd64"] },
];

/// The guest kernel when none is named, and the kernel of the emulated host.
pub const DEFAULT_KERNEL: Kernel =
    Kernel { name: "6.12", packages: &["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"] };

/// Modules that make a KVM host of a kernel, with a disk for the files that are handed in; what they depend on is
/// found in the modules themselves.
pub(crate) const HOST_MODULES: &[&str] = &["kvm-amd", "kvm-intel", "virtio_blk"];

/// Modules that tests load in guests. They need no others, and every kernel has them.
pub(crate) const GUEST_MODULES: &[&str] = &["dummy", "loop"];

impl Kernel {
    /// Whether a package is an image of this series: `linux-image-6.12.117+deb12-cloud-amd64` is one of `6.12`.
    pub(crate) fn owns(&self, package: &str) -> bool {
        package
            .strip_prefix("linux-image-")
            .and_then(|rest| rest.strip_prefix(self.name))
            .is_some_and(|rest| rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_belongs_to_one_series() {
        let owners = |package| -> Vec<_> {
            KERNELS.iter().filter(|kernel| kernel.owns(package)).map(|kernel| kernel.name).collect()
        };
        assert_eq!(owners("linux-image-6.12.117+deb12-cloud-amd64"), ["6.12"]);
        assert_eq!(owners("linux-image-6.1.0-56-cloud-amd64"), ["6.1"]);
        assert!(owners("linux-image-6.12-cloud-amd64").is_empty());
        assert!(owners("linux-image-6.16.3+deb13-cloud-amd64").is_empty());
    }
}
