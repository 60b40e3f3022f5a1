//! Packages, and what they depend on, as `apt-cache show` prints it.

/// A package of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
}

impl Package {
    /// `NAME=VERSION`, as apt takes it.
    pub(crate) fn with_version(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// The image that a meta package depends on, such as `linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)`.
pub(crate) fn image_of(text: &str) -> Option<Package> {
    exact_dependencies(text).into_iter().find(|package| package.name.starts_with("linux-image-"))
}

/// The source that a meta package depends on, such as `linux-source-7.2 (= 7.2.13-1)`.
pub(crate) fn source_of(text: &str) -> Option<Package> {
    exact_dependencies(text).into_iter().find(|package| package.name.starts_with("linux-source-"))
}

/// The packages that a package depends on in exactly one version. Those are built from the same source, as the parts
/// of an image are.
pub(crate) fn exact_dependencies(text: &str) -> Vec<Package> {
    let dependencies = field(text, "Depends").unwrap_or_default().split(',');
    let exact = dependencies.filter_map(|dependency| {
        let (name, version) = dependency.trim().strip_suffix(')')?.split_once(" (= ")?;
        Some(Package { name: name.to_owned(), version: version.to_owned() })
    });
    exact.collect()
}

/// The value of a field.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_package_leads_to_its_image() {
        const META: &str = "Package: linux-image-6.12-cloud-amd64\nSource: linux-6.12\n\
            Version: 6.12.117-1~deb12u1\n\
            Depends: linux-base (>= 4.3), linux-image-6.12.117+deb12-cloud-amd64 (= 6.12.117-1~deb12u1)\n\
            Description-en: Linux for x86-64 cloud (meta-package)\n";
        let image = image_of(META).unwrap();
        assert_eq!(image.name, "linux-image-6.12.117+deb12-cloud-amd64");
        assert_eq!(image.with_version(), "linux-image-6.12.117+deb12-cloud-amd64=6.12.117-1~deb12u1");
        assert_eq!(image_of("Package: x\nVersion: 1\n"), None);
    }

    #[test]
    fn a_meta_package_leads_to_its_source() {
        const META: &str =
            "Package: linux-source\nVersion: 7.2.13-1\nDepends: linux-source-7.2 (= 7.2.13-1)\n";
        assert_eq!(source_of(META).unwrap().with_version(), "linux-source-7.2=7.2.13-1");
    }

    #[test]
    fn a_split_image_leads_to_its_parts() {
        const SHELL: &str = "Package: linux-image-7.2.13+deb14-cloud-amd64\nVersion: 7.2.13-1\n\
            Pre-Depends: linux-base (>= 4.17~)\n\
            Depends: dracut | initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool, \
            linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), linux-binary-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
            linux-modules-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n";
        let parts = exact_dependencies(SHELL);
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "linux-base-7.2.13+deb14-cloud-amd64",
                "linux-binary-7.2.13+deb14-cloud-amd64",
                "linux-modules-7.2.13+deb14-cloud-amd64"
            ]
        );
        assert!(parts.iter().all(|part| part.version == "7.2.13-1"));
    }
}
