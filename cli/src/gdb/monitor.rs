//! `monitor`: what gdb has no command for.

use super::guest::Guest;
use crate::control::VcpuLine;
use crate::ctl::text;
use crate::say::harmless;
use anyhow::Result;

const HELP: &str = "\
monitor probes      the probes of this run, as `vmm ctl list` shows them
monitor tasks       which task each CPU runs
monitor stack [N]   who called whom on CPU N (the first is 0), or where the guest has stopped, by the kernel's own tables
monitor slide       what KASLR has added to the kernel's addresses
monitor refused     why the last breakpoint was refused
monitor quit        end the guest
";

/// What a command comes to, as text, in a guest that has stopped at this CPU.
pub(super) fn said(command: &[u8], guest: &mut Guest, stopped: usize, refused: Option<&str>) -> String {
    let command = String::from_utf8_lossy(command);
    match answered(&command, guest, stopped, refused) {
        Ok(text) => text,
        Err(error) => format!("{}\n", harmless(&format!("{error:#}"))),
    }
}

fn answered(command: &str, guest: &mut Guest, stopped: usize, refused: Option<&str>) -> Result<String> {
    let mut words = command.split_whitespace();
    Ok(match (words.next(), words.next().map(str::parse::<usize>)) {
        (Some("probes"), None) => guest.probes()?.iter().map(text::list_line).collect(),
        (Some("tasks"), None) => {
            guest.cpus()?.iter().map(|line| format!("cpu{} {}\n", line.vcpu, standing(line))).collect()
        }
        (Some("stack"), None) => guest.stack(stopped)?.iter().map(text::stack).collect(),
        (Some("stack"), Some(Ok(vcpu))) => guest.stack(vcpu)?.iter().map(text::stack).collect(),
        (Some("slide"), None) => match guest.kernel()?.slide {
            Some(slide) => format!("{slide}\n"),
            None => "it is not known yet where the kernel is\n".to_owned(),
        },
        (Some("refused"), None) => format!("{}\n", harmless(refused.unwrap_or("no breakpoint was refused"))),
        (Some("quit"), None) => {
            guest.quit()?;
            String::new()
        }
        _ => HELP.to_owned(),
    })
}

/// Where a CPU stands, in a few words.
pub(super) fn standing(line: &VcpuLine) -> String {
    harmless(line.stood.to_string().lines().next().unwrap_or_default())
}
