//! Where metrics are served.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// As the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsPlace {
    /// A port of an address, which is this machine's own where none is said.
    Port(SocketAddr),
    /// A socket in the file system.
    Socket(PathBuf),
}

impl FromStr for MetricsPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let address = text.parse().map(port).ok().or_else(|| text.parse().ok());
        match address {
            Some(address) => Ok(Self::Port(address)),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(format!("`{text}` is no port: write 0 to 65535, or a path"))
            }
            None => Ok(Self::Socket(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_port_an_address_or_a_path() {
        let place = |text: &str| text.parse::<MetricsPlace>().unwrap();
        assert_eq!(place("9100"), MetricsPlace::Port("127.0.0.1:9100".parse().unwrap()));
        assert_eq!(place("[::1]:9100"), MetricsPlace::Port("[::1]:9100".parse().unwrap()));
        for path in ["metrics", "/run/metrics", "./9100"] {
            assert_eq!(place(path), MetricsPlace::Socket(path.into()));
        }
        assert!("65536".parse::<MetricsPlace>().is_err() && "".parse::<MetricsPlace>().is_err());
    }
}
