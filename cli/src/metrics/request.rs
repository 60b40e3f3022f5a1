//! Requests of HTTP, as far as whoever reads metrics makes them.

use anyhow::{Result, bail};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

/// The longest head of a request that is read, in bytes.
const LONGEST: usize = 8 << 10;
/// So many fields has it at most.
const FIELDS: usize = 64;
/// What metrics are: Prometheus' own text.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What somebody wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The metrics, or what a client would get with them.
    Metrics { head: bool },
    /// What is not here.
    Elsewhere,
    /// To do what nobody can do here.
    OtherMethod,
    /// It is no HTTP.
    Nonsense,
    /// A page in a browser asks, which has its own name lead to this machine.
    Foreign,
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Askers {
    /// Whoever comes, by whatever name.
    All,
    /// Whoever asks by an address or as localhost: another name for this machine is one of a page's.
    Local,
}

impl Request {
    /// Reads a request. Nothing comes of a client that goes without one.
    ///
    /// # Errors
    /// When it has not come by `until`.
    pub(super) fn read(client: &mut impl Read, askers: Askers, until: Instant) -> Result<Option<Self>> {
        let mut head = Vec::new();
        loop {
            let mut bytes = [0; 1024];
            let count = match client.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            head.extend(bytes.iter().take(count));
            if let Some(request) = Self::of(&head, askers) {
                return Ok(Some(request));
            }
            if count == 0 {
                return Ok(None);
            }
            if Instant::now() >= until {
                bail!("the request has not come in time");
            }
        }
    }

    /// The one that `head` is the head of, once it is whole.
    fn of(head: &[u8], askers: Askers) -> Option<Self> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(head) {
            Ok(httparse::Status::Partial) if head.len() < LONGEST => return None,
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) | Err(_) => return Some(Self::Nonsense),
        }
        let mut hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
        if askers == Askers::Local && !hosts.all(|host| is_local(host.value)) {
            return Some(Self::Foreign);
        }
        let path = request.path.and_then(|path| path.split('?').next());
        Some(match (request.method, path) {
            (Some("GET"), Some("/metrics")) => Self::Metrics { head: false },
            (Some("HEAD"), Some("/metrics")) => Self::Metrics { head: true },
            (Some("GET" | "HEAD"), _) => Self::Elsewhere,
            _ => Self::OtherMethod,
        })
    }

    /// What is answered, where `metrics` finds out what is counted.
    pub(super) fn response(&self, metrics: impl FnOnce() -> Result<String>) -> Vec<u8> {
        let (status, kind, text) = match self {
            Self::Metrics { .. } => match metrics() {
                Ok(text) => ("200 OK", METRICS, text),
                Err(error) => ("503 Service Unavailable", PLAIN, format!("{error:#}\n")),
            },
            Self::Elsewhere => ("404 Not Found", PLAIN, "metrics are at /metrics\n".to_owned()),
            Self::OtherMethod => ("405 Method Not Allowed", PLAIN, "metrics are read by GET\n".to_owned()),
            Self::Nonsense => ("400 Bad Request", PLAIN, "this is no HTTP\n".to_owned()),
            Self::Foreign => {
                ("421 Misdirected Request", PLAIN, "ask by an address, or as localhost\n".to_owned())
            }
        };
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let text = if matches!(self, Self::Metrics { head: true }) { String::new() } else { text };
        (head + &text).into_bytes()
    }
}

/// Whether a host is called by its address, or by what leads to this machine and nowhere else.
fn is_local(host: &[u8]) -> bool {
    let Ok(host) = str::from_utf8(host) else { return false };
    let host = host.trim();
    let is_address = |text: &str| text.parse::<SocketAddr>().is_ok() || text.parse::<Ipv4Addr>().is_ok();
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    is_address(host)
        || inside.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
        || name.eq_ignore_ascii_case("localhost")
}

/// Writes all of `bytes`.
///
/// # Errors
/// When they have not been taken by `until`.
pub(super) fn write_until(client: &mut impl Write, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match client.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(mut text: &[u8]) -> Option<Request> {
        Request::read(&mut text, Askers::Local, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_page_of_the_webs_reads_nothing() {
        let asked = |host: &str, askers| {
            Request::of(format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes(), askers).unwrap()
        };
        let metrics = Request::Metrics { head: false };
        for host in ["localhost", "LocalHost:9100", "127.0.0.1", "127.0.0.1:9100", "[::1]", "[::1]:9100"] {
            assert_eq!(asked(host, Askers::Local), metrics, "{host}");
        }
        for host in
            ["there.example", "there.example:9100", "localhost.example", "127.0.0.1.example", "", "::"]
        {
            assert_eq!(asked(host, Askers::Local), Request::Foreign, "{host}");
            assert_eq!(asked(host, Askers::All), metrics, "{host}");
        }
    }

    #[test]
    fn metrics_are_at_one_place() {
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(LONGEST));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(FIELDS + 1));
        for (text, request) in [
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Some(Request::Metrics { head: false })),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Some(Request::Metrics { head: false })),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Some(Request::Metrics { head: true })),
            ("GET / HTTP/1.1\r\n\r\n", Some(Request::Elsewhere)),
            ("GET http://there/metrics HTTP/1.1\r\n\r\n", Some(Request::Elsewhere)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Request::OtherMethod)),
            ("\0\x01\r\n\r\n", Some(Request::Nonsense)),
            (&long, Some(Request::Nonsense)),
            (&many, Some(Request::Nonsense)),
            ("GET /metrics HTTP/1.1\r\n", None),
            ("", None),
        ] {
            assert_eq!(read(text.as_bytes()), request, "{text:?}");
        }
    }

    #[test]
    fn whoever_has_no_time_gets_nothing() {
        let over = Instant::now();
        assert!(Request::read(&mut &b"GET /"[..], Askers::All, over).is_err());
        assert!(write_until(&mut [0; 4].as_mut_slice(), b"more than that", over).is_err());
    }

    #[test]
    fn a_response_says_how_long_it_is() {
        let said = |request: Request, metrics: Result<String>| {
            String::from_utf8(request.response(|| metrics)).unwrap()
        };
        let whole = said(Request::Metrics { head: false }, Ok("# EOF\n".to_owned()));
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{whole}");
        assert!(whole.ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n# EOF\n"), "{whole}");
        let head = said(Request::Metrics { head: true }, Ok("# EOF\n".to_owned()));
        assert!(head.ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n"), "{head}");
        let ended = said(Request::Metrics { head: false }, Err(anyhow::anyhow!("the guest has ended")));
        assert!(ended.starts_with("HTTP/1.1 503 ") && ended.ends_with("the guest has ended\n"), "{ended}");
        assert!(said(Request::Elsewhere, Ok(String::new())).starts_with("HTTP/1.1 404 "));
    }
}
