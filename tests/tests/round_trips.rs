//! Requests for files go from the guest to the server outside, and their answers come back, as often as one likes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use tests::product::{binary, run};

/// Guests, and how often each of them asks: for long, a million times in all.
fn size() -> (u32, u64) {
    if std::env::var_os("VMM_LONG").is_some() { (5, 200_000) } else { (1, 5_000) }
}

/// Each name is looked up once, and is none: that is one request, and nothing of it is kept in the guest.
#[test]
fn no_request_is_lost_and_no_guest() {
    let Some(binary) = binary() else { return };
    let (guests, requests) = size();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let script = format!(
        "i=0; found=0; while [ $i -lt {requests} ]; do [ -e {folder}/none$i ] && found=1; i=$((i+1)); done; \
         exit $((7+found))"
    );
    let mut asked = 0;
    for guest in 0..guests {
        let words =
            ["--rwdir", folder, "--timeout=3000", "--count=*fuse_simple_request", "--", "sh", "-c", &script];
        let run = run(&binary, &words);
        run.assert_code(7);
        let counted = |what: &str| {
            let requests = run.output.iter().filter(|line| {
                line["type"] == "probe" && line["probe"].as_str().unwrap().ends_with("fuse_simple_request")
            });
            requests.map(|line| line[what].as_u64().unwrap()).sum::<u64>()
        };
        let hits = counted("hits");
        println!("guest {guest}: {hits} requests");
        assert!(hits >= requests && counted("missed") == 0, "{hits} of {requests}: {}", run.said);
        asked += hits;
    }
    println!("{asked} requests, and no guest was lost");
}
