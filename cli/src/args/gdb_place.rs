//! Where gdb connects, as a user says it.

use std::path::PathBuf;
use std::str::FromStr;

/// What a user says: a port, or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GdbPlace {
    Port(u16),
    Socket(PathBuf),
}

impl FromStr for GdbPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().ok().filter(|port| *port > 0);
            return port
                .map(Self::Port)
                .ok_or_else(|| format!("`{text}` is no port: write 1 to 65535, or a path"));
        }
        Ok(Self::Socket(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_port_and_all_else_a_path() {
        assert_eq!("1234".parse(), Ok(GdbPlace::Port(1234)));
        assert_eq!("guest.gdb".parse(), Ok(GdbPlace::Socket("guest.gdb".into())));
        assert_eq!("./1234".parse(), Ok(GdbPlace::Socket("./1234".into())));
        for wrong in ["0", "65536", "99999999999999999999"] {
            assert!(wrong.parse::<GdbPlace>().is_err(), "{wrong}");
        }
    }
}
