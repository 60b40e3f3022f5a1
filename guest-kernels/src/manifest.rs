//! The kernels that are known by name.

use std::fmt;
use std::str::FromStr;

/// A kernel of Debian's, unmodified. Prints as the name that users know it by, and is parsed from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    /// Which versions.
    pub series: Series,
    /// Which configuration.
    pub flavour: Flavour,
}

/// Which versions belong to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Those of one series, such as `6.12`, from where the machine's own packages come, or else from sid.
    Is(u32, u32),
    /// Those of all series with this major number or a higher one, from sid.
    Since(u32),
}

/// A configuration of Debian's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// For machines like ours. It has no word in a kernel's name.
    Cloud,
    /// With PREEMPT_RT: `6.12-rt`.
    Realtime,
    /// With the drivers of real machines: `6.12-amd64`.
    Generic,
}

/// A name that is none of a kernel of Debian's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a kernel of Debian's is named by its series, as 6.12, or 7 for the newest, and -rt or -amd64 behind that"
)]
pub struct NoName;

/// Debian's suite that has the newest kernels. It deletes versions when it moves on.
pub(crate) const NEWEST: &str = "sid";

/// Every kernel that setup fetches and tests are run on; adding one is adding an entry.
pub const KERNELS: &[Kernel] = &[
    DEFAULT_KERNEL,
    Kernel { series: Series::Is(6, 1), flavour: Flavour::Cloud },
    Kernel { series: Series::Is(6, 12), flavour: Flavour::Realtime },
    SINCE_7,
    Kernel { flavour: Flavour::Realtime, ..SINCE_7 },
];

/// The guest kernel when none is named, and the kernel of the emulated host.
pub const DEFAULT_KERNEL: Kernel = Kernel { series: Series::Is(6, 12), flavour: Flavour::Cloud };

/// The newest kernel that there is.
pub const SINCE_7: Kernel = Kernel { series: Series::Since(7), flavour: Flavour::Cloud };

/// Modules that make a KVM host of a kernel, with a disk for the files that are handed in; what they depend on is
/// found in the modules themselves.
pub(crate) const HOST_MODULES: &[&str] = &["kvm-amd", "kvm-intel", "virtio_blk"];

/// Modules that tests load in guests, and every kernel has; what they depend on is found in the same way.
pub(crate) const GUEST_MODULES: &[&str] = &["dummy", "loop", "softdog"];

/// Modules with which a guest reaches the folders of this machine. What a kernel has built in is no module.
pub(crate) const COMMAND_MODULES: &[&str] =
    &["virtio_pci", "virtio_console", "virtio_rng", "virtiofs", "overlay"];

impl Kernel {
    /// Debian packages that stand for the newest image of a series, by preference. Which series one stands for differs
    /// between Debian releases, so the first that leads to an image of this one is taken.
    pub(crate) fn packages(&self) -> Vec<String> {
        let flavour = self.flavour.as_debian();
        let newest = format!("linux-image-{flavour}");
        match self.series {
            Series::Is(..) => vec![format!("linux-image-{}-{flavour}", self.series), newest],
            Series::Since(_) => vec![newest],
        }
    }

    /// The packages it is looked for in, for people.
    #[must_use]
    pub fn origin(&self) -> String {
        let packages = self.packages().join(" or ");
        match self.series {
            Series::Is(..) => packages,
            Series::Since(_) => format!("{packages} of {NEWEST}"),
        }
    }

    /// The kernel that a package is an image of: that of `linux-image-6.12.117+deb12-cloud-amd64` is `6.12`. Packages that
    /// stand for others are none.
    pub(crate) fn of_image(package: &str) -> Option<Self> {
        let rest = package.strip_prefix("linux-image-")?;
        let version = |flavour: Flavour| rest.strip_suffix(flavour.as_debian())?.strip_suffix('-');
        let (flavour, version) =
            Flavour::ALL.into_iter().find_map(|flavour| Some((flavour, version(flavour)?)))?;
        // What is no version would be of another flavour.
        let is_version = version.split('-').all(|part| part.starts_with(|c: char| c.is_ascii_digit()));
        let mut numbers = version.splitn(3, '.');
        let series = Series::Is(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.next().filter(|_| is_version).map(|_patch| Self { series, flavour })
    }

    /// Whether a package is an image of this kernel.
    pub(crate) fn owns(&self, package: &str) -> bool {
        Self::of_image(package)
            .is_some_and(|image| image.flavour == self.flavour && self.series.has(image.series))
    }

    /// The environment variable that may say where its file is: `VMM_GUEST_KERNEL_6_12`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("VMM_GUEST_KERNEL_{}", self.to_string().replace(['.', '-'], "_").to_uppercase())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.series, self.flavour.suffix()))
    }
}

impl FromStr for Kernel {
    type Err = NoName;

    fn from_str(name: &str) -> Result<Self, NoName> {
        let of = |flavour: Flavour| {
            let series = name.strip_suffix(flavour.suffix())?.parse().ok()?;
            Some(Self { series, flavour })
        };
        Flavour::ALL.into_iter().find_map(of).ok_or(NoName)
    }
}

impl Series {
    /// Whether this series belongs to it.
    fn has(self, other: Self) -> bool {
        match (self, other) {
            (Self::Since(first), Self::Is(major, _)) => major >= first,
            _ => self == other,
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(major, minor) => write!(f, "{major}.{minor}"),
            Self::Since(major) => write!(f, "{major}"),
        }
    }
}

impl FromStr for Series {
    type Err = NoName;

    fn from_str(name: &str) -> Result<Self, NoName> {
        let series = match name.split_once('.') {
            Some((major, minor)) => {
                major.parse().and_then(|major| Ok(Self::Is(major, minor.parse()?))).map_err(|_| NoName)?
            }
            None => SINCE_7.series,
        };
        // Each has one name.
        if series.to_string() == name { Ok(series) } else { Err(NoName) }
    }
}

impl Flavour {
    /// The longest words of Debian's come first.
    const ALL: [Self; 3] = [Self::Cloud, Self::Realtime, Self::Generic];

    /// As the names of its images end.
    fn as_debian(self) -> &'static str {
        match self {
            Self::Cloud => "cloud-amd64",
            Self::Realtime => "rt-amd64",
            Self::Generic => "amd64",
        }
    }

    /// As the names of its kernels end.
    fn suffix(self) -> &'static str {
        match self {
            Self::Cloud => "",
            Self::Realtime => "-rt",
            Self::Generic => "-amd64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_belongs_to_a_series_and_a_flavour() {
        let name = |package| Kernel::of_image(package).map(|kernel| kernel.to_string()).unwrap_or_default();
        assert_eq!(name("linux-image-6.12.117+deb12-cloud-amd64"), "6.12");
        assert_eq!(name("linux-image-6.1.0-56-cloud-amd64"), "6.1");
        assert_eq!(name("linux-image-6.12.117+deb12-rt-amd64"), "6.12-rt");
        assert_eq!(name("linux-image-6.12.117+deb12-amd64"), "6.12-amd64");
        assert_eq!(name("linux-image-6.1.0-56-amd64"), "6.1-amd64");
        for none in
            ["cloud-amd64", "6.12-cloud-amd64", "amd64", "6.1.0-56-other-amd64", "6.1.0-56-amd64-unsigned"]
        {
            assert_eq!(Kernel::of_image(&format!("linux-image-{none}")), None, "{none}");
        }
    }

    #[test]
    fn the_newest_series_are_one_kernel() {
        let owners = |package| -> Vec<_> {
            KERNELS.iter().filter(|kernel| kernel.owns(package)).map(Kernel::to_string).collect()
        };
        assert_eq!(owners("linux-image-6.12.117+deb12-cloud-amd64"), ["6.12"]);
        assert_eq!(owners("linux-image-7.2.13+deb14-cloud-amd64"), ["7"]);
        assert_eq!(owners("linux-image-7.2.13+deb14-rt-amd64"), ["7-rt"]);
        assert_eq!(owners("linux-image-10.0.1+deb15-cloud-amd64"), ["7"]);
        assert!(owners("linux-image-7.2.13+deb14-amd64").is_empty());
        assert!(owners("linux-image-6.16.3+deb13-cloud-amd64").is_empty());
    }

    #[test]
    fn a_kernel_has_one_name() {
        for name in ["6.12", "6.1", "6.12-rt", "7", "7-rt", "7-amd64", "7.2", "6.12-amd64", "10.0-rt"] {
            assert_eq!(name.parse().map(|kernel: Kernel| kernel.to_string()), Ok(name.to_owned()));
        }
        for kernel in KERNELS {
            assert_eq!(kernel.to_string().parse(), Ok(*kernel));
        }
        let wrong =
            ["", "6", "6.", ".1", "06.1", "6.1.0", "+6.1", "6.1-", "6.1-rt-rt", "6.1-cloud", "../6.1", "-rt"];
        for name in wrong {
            assert_eq!(name.parse::<Kernel>(), Err(NoName), "{name}");
        }
    }

    #[test]
    fn packages_of_a_series_come_before_the_newest() {
        let packages = |name: &str| name.parse::<Kernel>().unwrap().packages();
        assert_eq!(packages("6.12-rt"), ["linux-image-6.12-rt-amd64", "linux-image-rt-amd64"]);
        assert_eq!(packages("7-amd64"), ["linux-image-amd64"]);
    }
}
