//! Which kernel the user means.

use crate::say::note;
use anyhow::{Context, Result, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use guest_kernels::{Apt, Cache, FetchedKernel, Fetcher, KERNELS, Kernel, KernelFiles, NoName};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

/// Which kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A file, or a folder in which one was built.
    At(PathBuf),
    /// One of Debian's.
    Debian(Kernel),
    /// The one that this machine runs.
    Host,
}

impl Choice {
    /// As it is said on the command line.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(Self::parse)
    }

    /// What a word means.
    pub(crate) fn parse(text: OsString) -> Result<Self, String> {
        match text.to_str() {
            Some("") => Err("name a file, a folder, debian:V or host".to_owned()),
            Some("host") => Ok(Self::Host),
            Some(word) => match word.strip_prefix("debian:") {
                Some(name) => debian(name).map(Self::Debian),
                None => Ok(Self::At(word.into())),
            },
            None => Ok(Self::At(text.into())),
        }
    }

    /// The word that means it.
    pub(crate) fn word(&self) -> OsString {
        match self {
            Self::At(path) => path.into(),
            Self::Debian(kernel) => format!("debian:{kernel}").into(),
            Self::Host => "host".into(),
        }
    }

    /// Where its files are. One of Debian's that is not in the cache is fetched.
    pub(crate) fn files(&self) -> Result<KernelFiles> {
        match self {
            Self::At(path) if path.try_exists().is_ok_and(|is_there| !is_there) => bail!(
                "cannot read {}: No such file or directory; a kernel is a file, the folder of a build, debian:6.12 or host",
                path.display()
            ),
            Self::At(path) => Ok(KernelFiles::at(path)?),
            Self::Debian(kernel) => Ok(fetched(kernel)?.into()),
            Self::Host => Ok(KernelFiles::of_this_machine()?),
        }
    }
}

/// One of Debian's kernels by its name.
pub(crate) fn debian(name: &str) -> Result<Kernel, String> {
    name.parse().map_err(|error: NoName| {
        let all = all_known(Cache::open().ok().as_ref());
        let all: Vec<String> = all.iter().map(Kernel::to_string).collect();
        format!("{error}; there are {}", all.join(", "))
    })
}

/// The kernels that can be fetched, as far as this machine knows, and those that were.
pub(crate) fn all_known(cache: Option<&Cache>) -> BTreeSet<Kernel> {
    let mut kernels = cache.map(Cache::kernels).unwrap_or_default();
    kernels.extend(KERNELS);
    // On a machine without apt there are those that were fetched elsewhere.
    kernels.extend(Apt::of_the_machine().kernels().unwrap_or_default());
    kernels
}

/// One of Debian's kernels, in the cache. When it was not there, it is fetched, which is said.
pub(crate) fn fetched(kernel: &Kernel) -> Result<FetchedKernel> {
    let cache = Cache::open()?;
    if let Ok(there) = cache.kernel(kernel) {
        return Ok(there);
    }
    let writer = cache.lock()?;
    // Another process may have fetched it meanwhile.
    if let Ok(there) = cache.kernel(kernel) {
        return Ok(there);
    }
    let (origin, to) = (kernel.origin(), cache.root().display());
    note(format_args!("kernel {kernel} is not in {to}: fetching Debian's {origin}"));
    note(Fetcher::new(&writer, &|line| note(line)).fetch(kernel).with_context(|| unfetched(kernel))?);
    Ok(cache.kernel(kernel)?)
}

/// What cannot be done where that fails.
pub(crate) fn unfetched(kernel: &Kernel) -> String {
    format!("cannot fetch Debian's kernel {kernel}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_kernels::DEFAULT_KERNEL;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_kernel_is_said_in_one_word() {
        let cases = [
            ("debian:6.12", Choice::Debian(DEFAULT_KERNEL)),
            ("host", Choice::Host),
            ("./host", Choice::At("./host".into())),
            ("bzImage", Choice::At("bzImage".into())),
            ("./debian:6.12", Choice::At("./debian:6.12".into())),
            ("/linux", Choice::At("/linux".into())),
            ("debian", Choice::At("debian".into())),
            ("debian:6.18-amd64", Choice::Debian("6.18-amd64".parse().unwrap())),
        ];
        for (word, choice) in cases {
            assert_eq!(Choice::parse(word.into()), Ok(choice.clone()), "{word}");
            assert_eq!(choice.word(), word);
        }
        for kernel in KERNELS {
            let word = Choice::Debian(*kernel).word();
            assert_eq!(Choice::parse(word), Ok(Choice::Debian(*kernel)));
        }
        let bytes = OsString::from_vec(vec![b'/', 0xff]);
        assert_eq!(Choice::parse(bytes.clone()), Ok(Choice::At(bytes.into())));
    }

    #[test]
    fn a_file_that_is_not_there_is_refused_with_what_a_kernel_may_be() {
        let refused = Choice::parse("debain:6.12".into()).unwrap().files().unwrap_err().to_string();
        assert!(refused.contains("debain:6.12") && refused.contains("debian:6.12"), "{refused}");
    }

    #[test]
    fn what_names_no_kernel_is_refused_with_how_they_are_named() {
        for word in ["debian:", "debian:bookworm", "debian:6.12 ", "debian:debian:6.12"] {
            let refused = Choice::parse(word.into()).unwrap_err();
            assert!(refused.starts_with(&format!("{NoName}; there are ")), "{word}: {refused}");
            assert!(refused.contains(" 6.1, ") && refused.contains(", 6.12, "), "{word}: {refused}");
        }
        assert!(Choice::parse(OsString::new()).is_err());
    }
}
