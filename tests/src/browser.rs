//! A headless Chromium, driven by its DevTools protocol over two pipes.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a slow machine may take for one step.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    /// What was read of a message that is not whole.
    begun: Vec<u8>,
    session: Value,
    next: u64,
    /// What the page complained of.
    complaints: Vec<String>,
    /// What it asked for.
    requests: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts one with an empty page of 1440 by 1000 pixels.
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The protocol's pipes are descriptors 3 and 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh", "chromium"]);
        shell.args(["--headless", "--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run"]);
        // Pages that draw with WebGL do so without a graphics card.
        shell.args(["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"]);
        if rustix::process::getuid().is_root() {
            shell.arg("--no-sandbox");
        }
        shell.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut browser = Self {
            to: child.stdin.take().unwrap(),
            from: child.stdout.take().unwrap(),
            child,
            begun: Vec::new(),
            session: Value::Null,
            next: 0,
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Runtime", "Log", "Network", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.set_size(1440, 1000);
        browser
    }

    /// Opens a file of this machine, with what follows its name in the address, and waits until `condition` holds there.
    pub fn open(&mut self, file: &Path, rest: &str, condition: &str) {
        let url = format!("file://{}{rest}", file.display());
        self.call("Page.navigate", json!({ "url": url }));
        self.wait(condition);
    }

    /// The value of an expression, or of what its promise comes to.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let done = self.run(expression);
        assert!(done["exceptionDetails"].is_null(), "{expression}: {done}");
        done["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, condition: &str) {
        let begin = Instant::now();
        // While a page is opened there may be no document.
        while self.run(condition)["result"]["value"] != true {
            assert!(begin.elapsed() < PATIENCE, "not true: {condition}; complaints: {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&mut self, expression: &str) -> Value {
        let words = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        self.call("Runtime.evaluate", words)
    }

    /// Gives the page another size, in pixels.
    pub fn set_size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Tells the page whether its reader wants it dark.
    pub fn set_dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// Presses the left button at one place, and lets it go at another.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        for (kind, (x, y)) in [("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)] {
            let event =
                json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses a key, as `ArrowDown`, in what has the focus.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
    }

    /// Errors and warnings of the page's console, and exceptions that nobody caught.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The addresses that pages asked for.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser takes requests");
        loop {
            let mut answer = self.message(method);
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params.to_string()),
            Some("Runtime.consoleAPICalled") if params["type"] == "error" || params["type"] == "assert" => {
                self.complaints.push(params.to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params.to_string());
            }
            Some("Network.requestWillBeSent") => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// The next message, while `method` is waited for.
    fn message(&mut self, method: &str) -> Value {
        loop {
            if let Some(end) = self.begun.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.begun.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).unwrap();
            }
            let wait = Timespec::try_from(PATIENCE).unwrap();
            let ready = poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&wait)).unwrap();
            assert!(ready > 0, "the browser does not answer to {method}");
            let mut bytes = vec![0; 1 << 16];
            let n = self.from.read(&mut bytes).unwrap();
            assert!(n > 0, "the browser has ended, at {method}: is the package chromium installed?");
            self.begun.extend_from_slice(&bytes[..n]);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
