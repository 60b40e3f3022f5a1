//! The kernels that are known by name.

/// A kernel that `cargo xtask setup` fetches: unmodified, as Debian ships it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name that users know the kernel by: `6.12`.
    pub name: &'static str,
    /// The series.
    pub series: &'static str,
    /// Which of Debian's configurations, as its images' names end.
    pub flavour: &'static str,
    /// Debian packages that stand for the newest image of a series, by preference. Which series one stands for
    /// differs between Debian releases, so the first that leads to an image of this series is taken.
    pub packages: &'static [&'static str],
}

/// Every kernel that is fetched and tested; adding one is adding an entry.
pub const KERNELS: &[Kernel] = &[
    DEFAULT_KERNEL,
    Kernel {
        name: "6.1",
        series: "6.1",
        flavour: "cloud-amd64",
        packages: &["linux-image-cloud-amd64", "linux-image-6.1-cloud-amd64"],
    },
    // PREEMPT_RT.
    Kernel {
        name: "6.12-rt",
        series: "6.12",
        flavour: "rt-amd64",
        packages: &["linux-image-6.12-rt-amd64", "linux-image-rt-amd64"],
    },
];

/// The guest kernel when none is named, and the kernel of the emulated host.
pub const DEFAULT_KERNEL: Kernel = Kernel {
    name: "6.12",
    series: "6.12",
    flavour: "cloud-amd64",
    packages: &["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"],
};

/// Modules that make a KVM host of a kernel, with a disk for the files that are handed in; what they depend on is
/// found in the modules themselves.
pub(crate) const HOST_MODULES: &[&str] = &["kvm-amd", "kvm-intel", "virtio_blk"];

/// Modules that tests load in guests. They need no others, and every kernel has them.
pub(crate) const GUEST_MODULES: &[&str] = &["dummy", "loop"];

impl Kernel {
    /// Whether a package is an image of this kernel: `linux-image-6.12.117+deb12-cloud-amd64` is one of `6.12`.
    pub(crate) fn owns(&self, package: &str) -> bool {
        package
            .strip_prefix("linux-image-")
            .and_then(|rest| rest.strip_prefix(self.series)?.strip_suffix(self.flavour))
            .is_some_and(|rest| rest.starts_with('.') && rest.ends_with('-'))
    }

    /// The environment variable that may say where its file is: `VMM_GUEST_KERNEL_6_12`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("VMM_GUEST_KERNEL_{}", self.name.replace(['.', '-'], "_").to_uppercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_belongs_to_one_kernel() {
        let owners = |package| -> Vec<_> {
            KERNELS.iter().filter(|kernel| kernel.owns(package)).map(|kernel| kernel.name).collect()
        };
        assert_eq!(owners("linux-image-6.12.117+deb12-cloud-amd64"), ["6.12"]);
        assert_eq!(owners("linux-image-6.1.0-56-cloud-amd64"), ["6.1"]);
        assert_eq!(owners("linux-image-6.12.117+deb12-rt-amd64"), ["6.12-rt"]);
        assert!(owners("linux-image-6.12.117+deb12-amd64").is_empty());
        assert!(owners("linux-image-6.12-cloud-amd64").is_empty());
        assert!(owners("linux-image-6.16.3+deb13-cloud-amd64").is_empty());
    }
}
