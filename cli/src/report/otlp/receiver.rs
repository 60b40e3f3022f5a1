//! A receiver of OpenTelemetry: OTLP over HTTP, and what its answers mean.

use crate::args::Endpoint;
use crate::say::plain;
use serde::{Deserialize, Deserializer};
use std::time::Duration;
use ureq::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ureq::{Agent, Body, Error, http};

/// So much of an answer is read, in bytes.
const LONGEST_ANSWER: u64 = 64 << 10;
/// A receiver is waited for so long at most, whatever it says.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) struct Receiver {
    agent: Agent,
    logs: String,
}

/// What has become of records.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// They are taken, but for so many; why, in the receiver's words.
    Taken { rejected: u64, words: String },
    /// Not now. After this time, if the receiver says one.
    Later { why: String, after: Option<Duration> },
    /// They will not be taken.
    Never { why: String },
}

/// `ExportLogsServiceResponse`. All of it may be left out.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    partial_success: Option<PartialSuccess>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    #[serde(deserialize_with = "count")]
    rejected_log_records: u64,
    error_message: Option<String>,
}

/// `google.rpc.Status`: why it has failed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

impl Receiver {
    pub(super) fn at(endpoint: &Endpoint) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("vmm/", env!("CARGO_PKG_VERSION")))
            .accept("application/json");
        Self { agent: config.build().into(), logs: endpoint.logs() }
    }

    /// Sends `request`, and waits for the answer so long at most.
    pub(super) fn post(&self, request: &str, most: Duration) -> Answer {
        let post = self.agent.post(&self.logs).header(CONTENT_TYPE, "application/json");
        match post.config().timeout_global(Some(most)).build().send(request) {
            Ok(response) => answer(response),
            Err(error) => Answer::Later { why: why(&error), after: None },
        }
    }
}

/// Why there is no answer.
fn why(error: &Error) -> String {
    match error {
        Error::Timeout(_) => "it does not answer".to_owned(),
        Error::Io(error) => plain(error),
        _ => plain(error),
    }
}

fn answer(mut response: http::Response<Body>) -> Answer {
    let status = response.status();
    let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
    // What is no answer in words changes nothing.
    let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec().unwrap_or_default();
    if status.is_success() {
        let response: Response = serde_json::from_slice(&body).unwrap_or_default();
        let PartialSuccess { rejected_log_records, error_message } =
            response.partial_success.unwrap_or_default();
        let words = plain(&error_message.unwrap_or_default());
        return Answer::Taken { rejected: rejected_log_records, words };
    }
    let Status { message } = serde_json::from_slice(&body).unwrap_or_default();
    let mut why = format!("it answers {}", status.as_u16());
    if !message.is_empty() {
        why.push_str(&format!(": {}", plain(&message)));
    }
    match status.as_u16() {
        429 | 502 | 503 | 504 => Answer::Later { why, after },
        _ => Answer::Never { why },
    }
}

/// A number of 64 bits, which is a text or a number. None of a record is negative.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Count {
        Number(u64),
        Text(String),
    }
    Ok(match Count::deserialize(deserializer)? {
        Count::Number(number) => number,
        Count::Text(text) => text.parse().unwrap_or_default(),
    })
}
