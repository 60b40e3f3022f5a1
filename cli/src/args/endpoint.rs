//! Where events are sent.

use std::fmt;
use std::str::FromStr;
use ureq::http::Uri;
use ureq::http::uri::{Authority, Scheme};

/// A receiver of OpenTelemetry, as `http://127.0.0.1:4318`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint(String);

/// Why events are not sent there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error(
        "vmm has no TLS: send to a collector on this machine, as http://127.0.0.1:4318, which passes the events on"
    )]
    Tls,
    #[error("write it as http://127.0.0.1:4318, without a user, a query and the /v1/logs at its end")]
    Form,
}

/// Where a receiver takes logs.
const LOGS: &str = "/v1/logs";

impl Endpoint {
    /// The whole address to which logs go.
    pub(crate) fn logs(&self) -> String {
        format!("{}{LOGS}", self.0)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.parse().map_err(|_| EndpointError::Form)?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(EndpointError::Tls);
        }
        let is_place = |authority: &Authority| match authority.port_u16() {
            Some(port) => authority.as_str() == format!("{}:{port}", authority.host()),
            None => authority.as_str() == authority.host(),
        };
        let has_place = uri.authority().is_some_and(is_place);
        let text = text.trim_end_matches('/');
        if uri.scheme() != Some(&Scheme::HTTP) || !has_place || uri.query().is_some() || text.ends_with(LOGS)
        {
            return Err(EndpointError::Form);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_plain_http() {
        for (text, logs) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/logs"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/logs"),
            ("http://collector/otlp/", "http://collector/otlp/v1/logs"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().logs(), logs);
        }
        assert_eq!("https://127.0.0.1:4318".parse::<Endpoint>(), Err(EndpointError::Tls));
        for wrong in [
            "",
            "127.0.0.1:4318",
            "localhost",
            "/v1/logs",
            "unix:/run/otel",
            "ftp://127.0.0.1",
            "http://",
            "http://user:word@127.0.0.1:4318",
            "http://127.0.0.1:4318/?a=b",
            "http://127.0.0.1:4318/v1/logs",
            "http://127.0.0.1:66666",
        ] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(EndpointError::Form), "{wrong}");
        }
    }
}
