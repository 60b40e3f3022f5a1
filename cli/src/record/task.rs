//! The task that ran, as it is written.

use super::Address;
use probe_engine::addr::Gva;
use probe_engine::linux::task::{COMM, Context, Task};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// The task that ran.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TaskLine<'a> {
    /// Its name.
    #[serde(borrow)]
    comm: Cow<'a, str>,
    /// The same in hexadecimal, where it is no UTF-8.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    comm_bytes: Option<Cow<'a, str>>,
    pid: u32,
    tgid: u32,
    ns_pid: Option<u32>,
    uid: Option<u32>,
    context: Option<Cow<'a, str>>,
    /// Its `task_struct`, which tells it from others of the same number.
    at: Address,
}

impl<'a> TaskLine<'a> {
    pub(super) fn of(task: &'a Task) -> Self {
        let comm = String::from_utf8_lossy(task.comm());
        let Task { pid, tgid, ns_pid, uid, context, at, .. } = *task;
        Self {
            comm_bytes: matches!(comm, Cow::Owned(_)).then(|| hex(task.comm()).into()),
            comm,
            pid,
            tgid,
            ns_pid,
            uid,
            context: context.name().map(Cow::Borrowed),
            at: Address(at.0),
        }
    }

    pub(super) fn task(self) -> Task {
        let exact = self.comm_bytes.as_deref().and_then(unhex);
        let name = exact.unwrap_or_else(|| self.comm.as_bytes().to_vec());
        let mut comm = [0; COMM];
        comm.iter_mut().zip(name).for_each(|(to, byte)| *to = byte);
        let of = [Context::SoftIrq, Context::HardIrq, Context::Nmi];
        let context = of.into_iter().find(|context| context.name() == self.context.as_deref());
        Task {
            at: Gva(self.at.0),
            pid: self.pid,
            tgid: self.tgid,
            ns_pid: self.ns_pid,
            uid: self.uid,
            context: context.unwrap_or_default(),
            comm,
        }
    }
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that are written so.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// For a line of which a task is a part that is kept.
pub(super) mod kept {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Task, TaskLine};

    pub(in super::super) fn serialize<S: Serializer>(
        task: &Option<Task>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        task.as_ref().map(TaskLine::of).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Task>, D::Error> {
        Ok(Option::<TaskLine<'de>>::deserialize(deserializer)?.map(TaskLine::task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_comes_back_as_it_was() {
        let mut task = Task {
            at: Gva(8),
            pid: 7,
            tgid: 6,
            ns_pid: Some(1),
            uid: Some(1000),
            context: Context::HardIrq,
            comm: *b"a\xff\x1b\"b\0\0\0\0\0\0\0\0\0\0\0",
        };
        for comm in [task.comm, *b"fifteen bytes..\0", *b"sixteen bytes...", [0; COMM]] {
            task.comm = comm;
            let line = serde_json::to_string(&TaskLine::of(&task)).unwrap();
            assert_eq!(serde_json::from_str::<TaskLine<'_>>(&line).unwrap().task(), task, "{line}");
        }
    }

    #[test]
    fn hexadecimal_is_read_or_refused() {
        assert_eq!(unhex(&hex(&[0, 0x7f, 0xff])), Some(vec![0, 0x7f, 0xff]));
        assert_eq!((unhex("0"), unhex("0g"), unhex("é0")), (None, None, None));
    }
}
