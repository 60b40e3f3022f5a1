//! `vmm host`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Look after the emulated host
#[derive(Args)]
pub(crate) struct Host {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Subcommand)]
pub(crate) enum HostCommand {
    /// Boot it once and keep a snapshot of it, so that runs start at once
    Prepare,
    /// Run a static program inside it, as its superuser
    Exec {
        /// Set an environment variable for it; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
        env: Vec<(String, String)>,
        /// Copy a file of this machine into it, and set an environment variable to its path there; may be repeated
        #[arg(long = "file", value_name = "NAME=PATH", value_parser = parse_variable)]
        files: Vec<(String, String)>,
        /// The program, a file of this machine
        #[arg(value_name = "FILE")]
        program: PathBuf,
        /// Its arguments
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// The name and the value of an environment variable: the name ends at the first `=`.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_variable("A=b=c"), pair("A", "b=c"));
        assert_eq!(parse_variable("A="), pair("A", ""));
        for wrong in ["", "A", "=b"] {
            assert!(parse_variable(wrong).is_err(), "{wrong}");
        }
    }
}
