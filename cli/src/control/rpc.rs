//! JSON-RPC 2.0, as far as a control socket speaks it: one message a line, and no batches.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// A method that a client calls.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    /// By what the client tells the answer from others. Without one the client wants no answer.
    pub(super) id: Option<Value>,
    pub(super) method: String,
    pub(super) params: Value,
}

/// Why a method gives no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    code: Code,
    message: String,
}

/// The kinds of failures. The first ones are JSON-RPC's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// It is no JSON.
    Parse = -32700,
    /// It is no call.
    Request = -32600,
    /// There is no such method.
    Method = -32601,
    /// The method has other parameters.
    Params = -32602,
    /// It cannot be done, and the message says why.
    Refused = 1,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

#[derive(Deserialize)]
struct Message {
    jsonrpc: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: String,
    #[serde(default)]
    params: Value,
}

/// What is there, also where that is `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The call that a line is.
///
/// # Errors
/// What is wrong with it, with the id that it has, or null.
pub(super) fn call(line: &[u8]) -> Result<Call, (Value, Failure)> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| (Value::Null, Failure::new(Code::Parse, format!("the line is no JSON: {error}"))))?;
    let id = value.get("id").filter(|id| is_id(id)).cloned().unwrap_or_default();
    let wrong = |what: String| (id.clone(), Failure::new(Code::Request, what));
    if value.is_array() {
        return Err(wrong("batches are not taken: send one call a line".to_owned()));
    }
    let message: Message =
        serde_json::from_value(value).map_err(|error| wrong(format!("the line is no call: {error}")))?;
    if message.jsonrpc != "2.0" {
        return Err(wrong("the line is no call of JSON-RPC 2.0".to_owned()));
    }
    if message.id.as_ref().is_some_and(|id| !is_id(id)) {
        return Err(wrong("an id is a number, a string or null".to_owned()));
    }
    let Message { id, method, params, .. } = message;
    Ok(Call { id, method, params })
}

fn is_id(value: &Value) -> bool {
    value.is_number() || value.is_string() || value.is_null()
}

/// The line that answers the call with this id.
pub(super) fn response(id: &Value, result: Result<Value, Failure>) -> String {
    let response = match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(Failure { code, message }) => {
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code as i32, "message": message } })
        }
    };
    format!("{response}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_call() {
        let line = br#"{"jsonrpc":"2.0","id":7,"method":"list"}"#;
        let expected = Call { id: Some(json!(7)), method: "list".to_owned(), params: Value::Null };
        assert_eq!(call(line).unwrap(), expected);
        let line = br#"{"jsonrpc":"2.0","method":"remove","params":{"probes":[1]}}"#;
        assert_eq!(call(line).unwrap().id, None);
        assert_eq!(call(br#"{"jsonrpc":"2.0","id":null,"method":"a"}"#).unwrap().id, Some(Value::Null));
    }

    #[test]
    fn what_is_no_call_is_refused_with_its_id() {
        for (line, id, code) in [
            (&b""[..], Value::Null, -32700),
            (b"{", Value::Null, -32700),
            (b"\xff\xfe", Value::Null, -32700),
            (b"7", Value::Null, -32600),
            (b"[]", Value::Null, -32600),
            (br#"{"id":3,"method":"list"}"#, json!(3), -32600),
            (br#"{"jsonrpc":"1.0","id":"x","method":"list"}"#, json!("x"), -32600),
            (br#"{"jsonrpc":"2.0","id":[1],"method":"list"}"#, Value::Null, -32600),
            (br#"{"jsonrpc":"2.0","id":1,"method":5}"#, json!(1), -32600),
        ] {
            let (own, failure) = call(line).unwrap_err();
            let text = String::from_utf8_lossy(line).into_owned();
            assert_eq!((&own, failure.code as i32), (&id, code), "{text}");
            let answer: Value = serde_json::from_str(&response(&own, Err(failure))).unwrap();
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(call(deep.as_bytes()).is_err());
    }
}
