//! The kernels that are known by name.

/// A kernel that can be fetched: unmodified, as Debian ships it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name that users know the kernel by: `6.12`.
    pub name: &'static str,
    /// The series.
    pub series: Series,
    /// Where its packages come from.
    pub suite: Suite,
    /// Which of Debian's configurations, as its images' names end.
    pub flavour: &'static str,
    /// Debian packages that stand for the newest image of a series, by preference. Which series one stands for
    /// differs between Debian releases, so the first that leads to an image of this series is taken.
    pub packages: &'static [&'static str],
}

/// Which versions belong to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Those of one series, such as `6.12`.
    Is(&'static str),
    /// Those of all series with this major number or a higher one.
    Since(u32),
}

/// The Debian suite that packages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Whatever the machine's own apt has.
    OfTheMachine,
    /// This one. It deletes versions when it moves on.
    Named(&'static str),
}

/// Every kernel that is fetched and tested; adding one is adding an entry.
pub const KERNELS: &[Kernel] = &[
    DEFAULT_KERNEL,
    Kernel {
        name: "6.1",
        series: Series::Is("6.1"),
        suite: Suite::OfTheMachine,
        flavour: "cloud-amd64",
        packages: &["linux-image-cloud-amd64", "linux-image-6.1-cloud-amd64"],
    },
    // PREEMPT_RT.
    Kernel {
        name: "6.12-rt",
        series: Series::Is("6.12"),
        suite: Suite::OfTheMachine,
        flavour: "rt-amd64",
        packages: &["linux-image-6.12-rt-amd64", "linux-image-rt-amd64"],
    },
    // The newest that there is.
    Kernel {
        name: "7",
        series: Series::Since(7),
        suite: Suite::Named("sid"),
        flavour: "cloud-amd64",
        packages: &["linux-image-cloud-amd64"],
    },
    Kernel {
        name: "7-rt",
        series: Series::Since(7),
        suite: Suite::Named("sid"),
        flavour: "rt-amd64",
        packages: &["linux-image-rt-amd64"],
    },
];

/// The guest kernel when none is named, and the kernel of the emulated host.
pub const DEFAULT_KERNEL: Kernel = Kernel {
    name: "6.12",
    series: Series::Is("6.12"),
    suite: Suite::OfTheMachine,
    flavour: "cloud-amd64",
    packages: &["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"],
};

/// Modules that make a KVM host of a kernel, with a disk for the files that are handed in; what they depend on is
/// found in the modules themselves.
pub(crate) const HOST_MODULES: &[&str] = &["kvm-amd", "kvm-intel", "virtio_blk"];

/// Modules that tests load in guests. They need no others, and every kernel has them.
pub(crate) const GUEST_MODULES: &[&str] = &["dummy", "loop"];

/// Modules with which a guest reaches the folders of this machine. What a kernel has built in is no module.
pub(crate) const COMMAND_MODULES: &[&str] =
    &["virtio_pci", "virtio_console", "virtio_rng", "virtiofs", "overlay"];

impl Kernel {
    /// The kernel of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        KERNELS.iter().find(|kernel| kernel.name == name).copied()
    }

    /// The packages it is looked for in, for people.
    #[must_use]
    pub fn origin(&self) -> String {
        let packages = self.packages.join(" or ");
        match self.suite {
            Suite::OfTheMachine => packages,
            Suite::Named(suite) => format!("{packages} of {suite}"),
        }
    }

    /// Whether a package is an image of this kernel: `linux-image-6.12.117+deb12-cloud-amd64` is one of `6.12`.
    pub(crate) fn owns(&self, package: &str) -> bool {
        let version = || package.strip_prefix("linux-image-")?.strip_suffix(self.flavour)?.strip_suffix('-');
        version().is_some_and(|version| self.series.has(version))
    }

    /// The environment variable that may say where its file is: `VMM_GUEST_KERNEL_6_12`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("VMM_GUEST_KERNEL_{}", self.name.replace(['.', '-'], "_").to_uppercase())
    }
}

impl Series {
    /// Whether this version belongs to it, which has more parts than the series: `6.12.117+deb12`.
    fn has(self, version: &str) -> bool {
        match self {
            Self::Is(series) => version.strip_prefix(series).is_some_and(|rest| rest.starts_with('.')),
            Self::Since(first) => {
                let major = version.split_once('.').and_then(|(major, _)| major.parse::<u32>().ok());
                major.is_some_and(|major| major >= first)
            }
        }
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
        assert_eq!(owners("linux-image-7.2.13+deb14-cloud-amd64"), ["7"]);
        assert_eq!(owners("linux-image-7.2.13+deb14-rt-amd64"), ["7-rt"]);
        assert_eq!(owners("linux-image-10.0.1+deb15-cloud-amd64"), ["7"]);
        assert!(owners("linux-image-cloud-amd64").is_empty());
        assert!(owners("linux-image-7.2.13+deb14-amd64").is_empty());
        assert!(owners("linux-image-6.12.117+deb12-amd64").is_empty());
        assert!(owners("linux-image-6.12-cloud-amd64").is_empty());
        assert!(owners("linux-image-6.16.3+deb13-cloud-amd64").is_empty());
    }
}
