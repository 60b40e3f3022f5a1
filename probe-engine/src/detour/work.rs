//! What a detour has to do for a probe, and what none can do.

use crate::addr::Gva;
use crate::capture::{Base, Capture, Fetch, Read, Register, Scene};
use crate::detour::condition::{Fields, HitCondition};
use crate::detour::groups::Groups;
use crate::detour::layout::{ARGUMENTS, CELL, COUNTERS, MOST_CELLS, record};
use crate::detour::reads::{CannotRead, Kepts, Reads};
use crate::detour::ring::Record;
use crate::detour::unsuited::Unsuited;
use crate::linux::scope::Scope;
use crate::probe::plan::{Action, ProbePlan, Trigger};
use crate::regs::Regs;
use std::collections::BTreeSet;

/// What is done for one probe at a hit, or at a return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The probe's number in the tables of counters, less than [`COUNTERS`](super::layout::COUNTERS).
    pub probe: u32,
    /// Of which passes hits are made, and calls followed; the others are only counted, apart.
    pub scope: Scope,
    /// Which hits count.
    pub condition: Option<HitCondition>,
    /// The registers that are noted down besides those of arguments, in this order; `None` when hits are only counted.
    pub record: Option<Vec<Register>>,
    /// What is read of memory before all that.
    pub reads: Reads,
    /// By what hits are counted, instead of being noted down, where there is room for that.
    pub groups: Option<Groups>,
    /// The number of its [consumer](super::layout::CONSUMERS), if only those passes are of interest that are made for that.
    pub consumer: Option<u32>,
    /// The calls that are followed, where returns are hits. Then all above is of the moment of a return.
    pub calls: Option<Calls>,
}

/// Calls that are followed to their return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// How many at a time, if that is limited.
    pub most: Option<u32>,
    /// Whether the arguments are kept with which each was made.
    pub arguments: bool,
}

impl Work {
    /// What the probe of this number needs for its `plan`.
    ///
    /// # Errors
    /// [`Unsuited`]: it has to stay on a trap.
    pub fn of(probe: u32, plan: &ProbePlan) -> Result<Self, Unsuited> {
        let ProbePlan {
            trigger,
            capture,
            action,
            scope,
            once,
            pace,
            inject,
            guard,
            tracepoint: _,
            program: _,
        } = plan;
        if plan.stack().is_some() {
            return Err(Unsuited::Stack);
        }
        if *once {
            return Err(Unsuited::Once);
        }
        if pace.is_some() {
            return Err(Unsuited::Pace);
        }
        if inject.is_some() {
            return Err(Unsuited::Inject);
        }
        if guard.is_some() {
            return Err(Unsuited::Guard);
        }
        if probe >= COUNTERS {
            return Err(Unsuited::TooManyProbes);
        }
        let recorded = plan.records();
        let unshown = capture.unshown.iter().filter(|_| recorded);
        let all = capture.fields.iter().chain(&capture.hidden).chain(unshown);
        let calls = match *trigger {
            Trigger::Pass => None,
            Trigger::Return { max_active: most } => {
                Some(Calls { most, arguments: all.clone().any(|field| reads_argument(&field.fetch)) })
            }
            Trigger::Access => return Err(Unsuited::Watch),
        };
        let is_read = recorded || capture.filter.is_some();
        let (mut others, mut reads, mut read) = (BTreeSet::new(), Reads::default(), Vec::new());
        for field in all.filter(|_| is_read) {
            let needs = field.fetch.needs(&field.name, calls.is_some(), &mut reads)?;
            others.extend(needs.register().filter(|_| recorded));
            read.push(needs.memory());
        }
        let known = Fields { capture, read: &read, at_return: calls.is_some() };
        let condition = capture.filter.as_ref().map(|filter| HitCondition::of(filter, &known)).transpose()?;
        others.retain(|register| match calls {
            None => argument(*register).is_none(),
            Some(_) => *register != Register::Rax,
        });
        let record = recorded.then(|| others.into_iter().collect());
        let groups = match action {
            Action::Histogram(histogram) => Groups::of(histogram, &known),
            Action::Count | Action::Record { .. } => None,
        };
        let consumer = None;
        let work = Self { probe, scope: *scope, condition, record, reads, groups, consumer, calls };
        if record::REGISTERS + 8 * work.words() as u64 > MOST_CELLS * CELL {
            return Err(Unsuited::TooManyRegisters);
        }
        Ok(work)
    }

    /// The same for those passes alone that are made for this consumer.
    #[must_use]
    pub fn of_consumer(self, consumer: Option<u32>) -> Self {
        Self { consumer, ..self }
    }

    /// Whether it counts all passes, and nothing else.
    pub(super) fn only_counts(&self) -> bool {
        let is_plain = self.condition.is_none() && self.record.is_none() && self.calls.is_none();
        is_plain && self.reads.is_empty() && self.scope == Scope::Boot && self.consumer.is_none()
    }

    /// Whether it needs more than a counter.
    pub(super) fn uses_registers(&self) -> bool {
        let is_of_some = self.scope != Scope::Boot || self.consumer.is_some();
        self.record.is_some() || self.condition.is_some() || is_of_some
    }

    /// How many words follow the first six of its records.
    pub(super) fn words(&self) -> usize {
        let registers = self.record.as_ref().map_or(0, Vec::len);
        registers + if self.keeps_arguments() { ARGUMENTS } else { 0 } + (self.reads.length / 8) as usize
    }

    pub(super) fn keeps_arguments(&self) -> bool {
        self.calls.is_some_and(|calls| calls.arguments)
    }

    /// What `capture` reads of a record of this work. Returns false when the record cannot have been made by it.
    pub fn replay(&self, capture: &Capture, record: &Record, at: RecordedAt, captured: &mut Vec<u8>) -> bool {
        let RecordedAt { rip, slide, cpu } = at;
        captured.clear();
        let mut regs = Regs { rip: rip.0, ..Regs::default() };
        let (kept, others) = match self.keeps_arguments() {
            true => record.registers.split_at_checked(ARGUMENTS).unwrap_or_default(),
            false => ([].as_slice(), record.registers.as_slice()),
        };
        let entered_with = if self.calls.is_some() {
            regs.rax = record.returned().value;
            Some(std::array::from_fn(|n| kept.get(n).copied().unwrap_or(0)))
        } else {
            [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9] = record.args;
            None
        };
        for (register, value) in self.record.iter().flatten().zip(others) {
            *register.slot(&mut regs) = *value;
        }
        let area = others.get(self.record.as_ref().map_or(0, Vec::len)..).unwrap_or_default();
        let memory = Kepts { reads: &self.reads, area };
        let task = Some(&record.task);
        let per_cpu = memory.per_cpu();
        capture
            .take(&Scene { regs: &regs, entered_with, memory: &memory, slide, task, cpu, per_cpu }, captured)
    }
}

/// Where a record was made.
#[derive(Debug, Clone, Copy)]
pub struct RecordedAt {
    /// RIP (GVA).
    pub rip: Gva,
    /// How far the kernel's addresses are above those at which it was linked.
    pub slide: u64,
    /// The number of the CPU.
    pub cpu: usize,
}

fn reads_argument(fetch: &Fetch) -> bool {
    matches!(fetch.base, Base::Argument(_) | Base::Arguments(_) | Base::Saved(..))
}

/// Which argument this register is, from 0 on.
fn argument(register: Register) -> Option<usize> {
    (0..6).find(|n| Register::of_argument(*n) == Some(register))
}

/// What has to be noted down for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// It is known without, or never.
    Nothing,
    Register(Register),
    /// Where the last entry of its chain is, and the register that it begins with.
    Memory(u64, Option<Register>),
}

impl Needs {
    fn register(self) -> Option<Register> {
        match self {
            Self::Register(register) | Self::Memory(_, Some(register)) => Some(register),
            Self::Nothing | Self::Memory(_, None) => None,
        }
    }

    fn memory(self) -> Option<u64> {
        match self {
            Self::Memory(at, _) => Some(at),
            Self::Nothing | Self::Register(_) => None,
        }
    }
}

impl Fetch {
    /// What has to be noted down for it. Memory is added to `reads`.
    fn needs(&self, name: &str, at_return: bool, reads: &mut Reads) -> Result<Needs, Unsuited> {
        let register = match self.base {
            Base::Comm | Base::Text(_) | Base::Usdt(_) | Base::Place | Base::Unknown => {
                return Ok(Needs::Nothing);
            }
            Base::Cgroup(_) | Base::CommandLine(_) => return Err(Unsuited::OfTask(name.to_owned())),
            // Every record has the task.
            Base::Register(Register::Rip) | Base::Constant(_) | Base::Kernel(_) | Base::Current => None,
            Base::Register(register) => Some(register),
            // Those in registers are kept, and there are no others.
            Base::Argument(n) if at_return && usize::from(n) < ARGUMENTS => None,
            Base::Argument(_) | Base::Arguments(_) if at_return => return Ok(Needs::Nothing),
            Base::Argument(n) => Some(Register::of_argument(n.into()).unwrap_or(Register::Rsp)),
            Base::Saved(n, _) => Register::of_argument(n.into()),
            Base::Stack(_) => Some(Register::Rsp),
            // Both are arguments, which every record has.
            Base::Arguments(n) if n < 5 => None,
            Base::Arguments(_) => {
                return Err(Unsuited::Memory(
                    name.to_owned(),
                    "lies half in a register and half on the stack",
                ));
            }
        };
        let is_known = match self.base {
            Base::Stack(_) | Base::Saved(..) => false,
            Base::Argument(n) => Register::of_argument(n.into()).is_some(),
            _ => true,
        };
        if is_known && self.hops.is_empty() && matches!(self.read, Read::Word(_)) {
            return Ok(register.map_or(Needs::Nothing, Needs::Register));
        }
        match reads.add(self, at_return) {
            Ok(at) => Ok(at.map_or(Needs::Nothing, |at| Needs::Memory(at, register))),
            Err(CannotRead) => Err(Unsuited::Memory(name.to_owned(), "more of it than a detour keeps")),
        }
    }
}

#[cfg(test)]
mod tests;
