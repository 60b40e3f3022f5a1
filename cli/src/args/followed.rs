//! Functions whose calls are followed, as a user writes them.

use probe_engine::lang::is_program;
use probe_engine::probe::spec::{ProbeSpec, SpecError};
use std::str::FromStr;

/// A function, or a pattern of functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Followed {
    /// Of the kernel.
    Kernel(ProbeSpec),
    /// Of a program: `PATH:NAME`.
    Program(String),
}

impl FromStr for Followed {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match is_program(text) {
            true => Ok(Self::Program(text.to_owned())),
            false => text.parse().map(Self::Kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_name_is_a_programs() {
        assert_eq!("/bin/ls:main".parse(), Ok(Followed::Program("/bin/ls:main".to_owned())));
        assert_eq!("vfs_*".parse(), Ok(Followed::Kernel("vfs_*".parse().unwrap())));
        assert!("/bin/ls".parse::<Followed>().is_err());
    }
}
