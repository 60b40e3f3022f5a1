//! Writing the memory of a guest that runs to an ELF core, by the guest's control socket.

use crate::control::{Connection, MemoryParts, NONSENSE, Ram, VcpuLine, VmcoreinfoText, hex};
use anyhow::{Context, Result, bail};
use probe_engine::addr::Gpa;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use vmm::dump::{CoreHead, NamedRegs, Notes};

/// So many bytes are asked for at a time: as many as are given.
const PIECE: u64 = 1 << 20;

#[derive(Deserialize)]
struct Vcpus {
    vcpus: Vec<VcpuLine>,
}

/// Writes all memory of the guest, or what of it is in `part`, to `file`, which is empty, as it is at one moment: the guest stands still
/// until the connection, which is for nothing else, has ended.
pub(crate) fn write(mut connection: Connection, part: Option<Range<Gpa>>, file: &File) -> Result<()> {
    connection.call("pause", Value::Null)?;
    let ranges = ranges(&mut connection, part.as_ref())?;
    if ranges.is_empty() {
        bail!("the guest has no memory there");
    }
    let head = CoreHead::new(&ranges, &notes(&mut connection)?)?;
    file.set_len(head.length)?;
    for (range, offset) in ranges.iter().zip(&head.offsets) {
        write_range(&mut connection, range, file, *offset)?;
    }
    if connection.has_been_told("resumed") {
        bail!("somebody has let the guest go on before all of its memory was written");
    }
    // A file that begins like a core has all of it.
    file.write_all_at(&head.bytes, 0)?;
    Ok(())
}

/// Where the guest has memory, in order.
pub(crate) fn ram(connection: &mut Connection) -> Result<Vec<Range<Gpa>>> {
    let Ram { ranges } = result(connection, "ram", Value::Null)?;
    Ok(ranges.iter().map(|range| Gpa(range.start.0)..Gpa(range.end.0)).collect())
}

/// What is in memory at `at`.
pub(crate) fn read(connection: &mut Connection, at: Gpa, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    for (place, part) in parts(connection, at, length as u64)? {
        let from = usize::try_from(place.0.wrapping_sub(at.0)).context(NONSENSE)?;
        let end = from.checked_add(part.len()).context(NONSENSE)?;
        bytes.get_mut(from..end).context(NONSENSE)?.copy_from_slice(&part);
    }
    Ok(bytes)
}

fn ranges(connection: &mut Connection, part: Option<&Range<Gpa>>) -> Result<Vec<Range<Gpa>>> {
    let within = |range: Range<Gpa>| match part {
        Some(part) => range.start.max(part.start)..range.end.min(part.end),
        None => range,
    };
    let ranges = ram(connection)?.into_iter().map(within);
    Ok(ranges.filter(|range| range.start < range.end).collect())
}

fn notes(connection: &mut Connection) -> Result<Notes> {
    let mut notes = Notes::default();
    let Vcpus { vcpus } = result(connection, "regs", Value::Null)?;
    for vcpu in vcpus.iter().filter(|vcpu| !vcpu.regs.is_empty()) {
        let named = vcpu.regs.iter().chain(&vcpu.system).map(|(name, value)| (name.clone(), value.0));
        let regs: NamedRegs = named.collect();
        notes.add_status(u32::try_from(vcpu.vcpu).context(NONSENSE)?, &regs);
        notes.add_processor(&regs);
    }
    let VmcoreinfoText { bytes } = result(connection, "vmcoreinfo", Value::Null)?;
    if let Some(text) = bytes {
        notes.add_vmcoreinfo(&hex::bytes(&text).context(NONSENSE)?);
    }
    Ok(notes)
}

/// Writes what is not zero in `range` to the file, where that is to begin at `offset`.
fn write_range(connection: &mut Connection, range: &Range<Gpa>, file: &File, offset: u64) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let length = PIECE.min(range.end.0 - at.0);
        for (place, bytes) in parts(connection, at, length)? {
            let is_inside = place >= at && bytes.len() as u64 <= length - (place.0 - at.0).min(length);
            if !is_inside {
                bail!(NONSENSE);
            }
            file.write_all_at(&bytes, offset + (place.0 - range.start.0))?;
        }
        at = at.add(length);
    }
    Ok(())
}

/// What of so many bytes at `at` is not zero, and where.
fn parts(connection: &mut Connection, at: Gpa, length: u64) -> Result<Vec<(Gpa, Vec<u8>)>> {
    let params = json!({ "address": format!("{:#x}", at.0), "length": length });
    let MemoryParts { parts } = result(connection, "read_physical", params)?;
    let part = |part: crate::control::MemoryPart| {
        Ok((Gpa(part.address.0), hex::bytes(&part.bytes).context(NONSENSE)?))
    };
    parts.into_iter().map(part).collect()
}

fn result<T: DeserializeOwned>(connection: &mut Connection, method: &str, params: Value) -> Result<T> {
    serde_json::from_value(connection.call(method, params)?).context(NONSENSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// A server of a guest with one page, which somebody lets go on before the page is read.
    fn connected(is_resumed: bool) -> Connection {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut out = theirs.try_clone().unwrap();
            for line in BufReader::new(theirs).lines().map_while(Result::ok) {
                let call: Value = serde_json::from_str(&line).unwrap();
                let method = call["method"].as_str().unwrap();
                let result = match method {
                    "version" => json!({ "protocol": 1 }),
                    "ram" => json!({ "ranges": [{ "start": "0x0", "end": "0x1000" }] }),
                    "regs" => json!({ "vcpus": [] }),
                    "vmcoreinfo" => json!({ "bytes": null }),
                    "read_physical" => json!({ "parts": [] }),
                    _ => json!({}),
                };
                if is_resumed && method == "read_physical" {
                    writeln!(out, "{}", json!({ "jsonrpc": "2.0", "method": "resumed" })).unwrap();
                }
                writeln!(out, "{}", json!({ "jsonrpc": "2.0", "id": call["id"], "result": result })).unwrap();
            }
        });
        Connection::over(ours).unwrap()
    }

    #[test]
    fn a_dump_is_of_one_moment_or_is_none() {
        let whole = tempfile::tempfile().unwrap();
        write(connected(false), None, &whole).unwrap();
        let mut magic = [0; 4];
        whole.read_exact_at(&mut magic, 0).unwrap();
        assert_eq!(magic, *b"\x7fELF");
        let torn = write(connected(true), None, &tempfile::tempfile().unwrap()).unwrap_err();
        assert!(torn.to_string().contains("somebody has let the guest go on"), "{torn:#}");
    }
}
