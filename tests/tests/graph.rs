//! `vmm run --graph`: calls and their returns, nested.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use tests::product::{Ended, binary, command, report};

/// The lines of the workload's own process without their times, from the first call of `function` on.
fn calls_from(graph: &str, function: &str) -> Vec<(usize, String)> {
    let own = graph.lines().filter(|line| line.split_whitespace().any(|word| word == "init-1"));
    let calls = own.map(|line| {
        let call = line.split_once("| ").unwrap().1;
        (call.len() - call.trim_start().len(), call.trim_start().to_owned())
    });
    calls.skip_while(|(_, call)| !call.starts_with(function)).collect()
}

/// Each open is a call that makes another, which makes a third.
#[test]
fn opens_nest_in_a_graph() {
    const OPENS: usize = 10;
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls");
    let words = [
        "run",
        "--cpus=2",
        "--graph=vfs_*",
        "--graph=do_sys_openat2",
        "--graph=*path_openat",
        "--cmdline=workload=open:10,pipe:20 loglevel=5",
        "--output",
        file.to_str().unwrap(),
    ];
    let ran = command(&binary, folder.path(), &words).output().ended();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    let graph = String::from_utf8(report(&binary, &file, &[])).unwrap();
    let calls = calls_from(&graph, "do_sys_openat2");
    let open = [
        "do_sys_openat2() {",
        "path_openat() {",
        "vfs_open();",
        "} /* path_openat */",
        "} /* do_sys_openat2 */",
    ];
    let depths = [0, 2, 4, 2, 0];
    let opens: Vec<_> = calls.iter().filter(|(_, call)| open.contains(&call.as_str())).collect();
    assert_eq!(opens.len(), OPENS * open.len(), "{graph}");
    for (n, (depth, call)) in opens.into_iter().enumerate() {
        assert_eq!((*depth, call.as_str()), (depths[n % 5], open[n % 5]), "{graph}");
    }
    // A call takes no longer than the one that it is made in.
    let took = |line: &str| line.split_once(" us |")?.0.split_whitespace().next_back()?.parse::<f64>().ok();
    let of =
        |name: &str| graph.lines().filter(|line| line.ends_with(name)).filter_map(took).collect::<Vec<_>>();
    let (outer, inner) = (of("} /* do_sys_openat2 */"), of("  } /* path_openat */"));
    let inner = &inner[inner.len() - outer.len()..];
    assert!(outer.len() >= OPENS && outer.iter().zip(inner).all(|(outer, inner)| outer > inner), "{graph}");
    let states = |name: &str| {
        said.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    for row in ["vfs_read ", "vfs_read%return ", "do_sys_openat2%return "] {
        assert!(states(row).iter().any(|row| row.ends_with("[OPTIMIZED]")), "{said}");
    }
    println!("{} lines, {} of the workload's opens", graph.lines().count(), outer.len());
}
