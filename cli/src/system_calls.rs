//! `vmm list --kind syscalls`: the system calls of a kernel.

use crate::args::{Format, List};
use crate::json::json;
use crate::listing::list;
use anyhow::{Result, bail};
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::syscalls::{SystemCall, SystemCalls};
use serde::Serialize;

/// What is said of one as JSON.
#[derive(Serialize)]
struct SystemCallRow<'a> {
    /// For 64-bit programs, where the kernel's table says it.
    number: Option<u32>,
    name: &'a str,
    handler: &'a str,
    /// Where 32-bit programs enter, if that is elsewhere.
    compat: Option<&'a str>,
    prototype: Option<String>,
}

/// Lists those whose names match `glob`, which was written `pattern`.
pub(crate) fn show(args: &List, kernel: &Kernel, pattern: &str, glob: &Glob) -> Result<()> {
    let all = SystemCalls::of(kernel);
    let matching = all.names().filter(|name| glob.matches(name));
    let mut calls: Vec<SystemCall> = matching.filter_map(|name| all.find(name).ok()).collect();
    calls.sort_by_key(|call| (call.number.unwrap_or(u32::MAX), call.name.clone()));
    if calls.is_empty() {
        match all.find(pattern) {
            Err(error) => bail!("{error}"),
            Ok(_) => bail!("no system call matches `{pattern}`"),
        }
    }
    list(|mut out| {
        for call in &calls {
            let prototype = args.verbose.then(|| call.to_string());
            let SystemCall { number, name, handler, compat, .. } = call;
            match args.format {
                Format::Text => {
                    let number = number.map_or_else(|| "?".to_owned(), |number| number.to_string());
                    let shown = prototype.as_deref().unwrap_or(name);
                    writeln!(out, "{number:>4} {shown} {}", handler.symbol)?;
                }
                Format::Json => {
                    let (handler, compat) = (handler.symbol.as_str(), compat.as_deref());
                    json(&mut out, &SystemCallRow { number: *number, name, handler, compat, prototype })?;
                }
            }
        }
        Ok(())
    })
}
