//! What is read of a program, where the kernel has others called for it: its registers are those that the kernel has saved, and its
//! memory is a process's.

use super::filter::Operand;
use super::hist::Histogram;
use super::shape::Shape;
use super::{Base, Capture, Fetch, Field, Hop, Read, Register, Value, What};
use crate::addr::Gva;
use crate::linux::program_place::{InFile, ProgramPlace};

/// What cannot be read of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotOfProgram {
    /// It is the kernel's.
    #[error("it is the kernel's, and not the program's")]
    Kernel,
    /// It was there when the function was entered.
    #[error("a function's arguments are gone when it returns")]
    Argument,
    /// It is where the kernel calls a function at which the hit is seen.
    #[error("it is an address of the kernel's, and the program's own is a field, as in `ip=%ip`")]
    Ip,
}

/// The words behind the return address are arguments from this one on, where a function has more than registers hold.
const ON_STACK: u8 = 6;

/// The first and the last of the registers of a program that are kept, as they lie in `struct pt_regs`.
const KEPT: [Register; 2] = [Register::R9, Register::Rsp];

/// What filters and histograms call the address of a hit.
const IP: &str = "__probe_ip";

/// The registers of a program that has come to a place, or has returned there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramState {
    /// RIP (GVA).
    pub ip: Gva,
    /// RSP (GVA).
    pub sp: Gva,
    /// RAX: where a function has returned, what it returns.
    pub ax: u64,
    /// Rdi, rsi, rdx, rcx, r8, r9.
    pub args: [u64; 6],
}

impl Capture {
    /// The same, which also keeps the [state](Self::program_state) of the program at `place`.
    #[must_use]
    pub fn keeping_state(self, place: &ProgramPlace) -> Self {
        let [first, last] = KEPT.map(Register::saved);
        let what = What::Bytes(last - first + 8);
        let read = Read::Memory(Hop::at(first.into()), what);
        let fetch = Fetch { base: Base::Argument(place.saved()), hops: Vec::new(), read };
        Self { unshown: vec![Field { name: "registers".to_owned(), fetch, shape: Shape::Hex }], ..self }
    }

    /// The state of the program in a `record` that this has taken, if it [keeps](Self::keeping_state) that and it could be read.
    #[must_use]
    pub fn program_state(&self, record: &[u8]) -> Option<ProgramState> {
        let Some(Value::Bytes(kept)) = self.unshown_values(record).next() else { return None };
        let get = |register: Register| {
            let at = usize::from(register.saved().checked_sub(KEPT[0].saved())?);
            Some(u64::from_le_bytes(kept.get(at..at + 8)?.try_into().ok()?))
        };
        let mut args = [0; 6];
        for (n, arg) in args.iter_mut().enumerate() {
            *arg = get(Register::of_argument(n)?)?;
        }
        let (ip, sp) = (Gva(get(Register::Rip)?), Gva(get(Register::Rsp)?));
        Some(ProgramState { ip, sp, ax: get(Register::Rax)?, args })
    }

    /// The same of a program, at `place`.
    ///
    /// # Errors
    /// The name of the first field that cannot be read so, and why.
    pub fn of_program(self, place: &ProgramPlace) -> Result<Self, (String, NotOfProgram)> {
        let of_program = |field: Field| match field.fetch.of_program(place) {
            Ok(fetch) => Ok(Field { fetch, ..field }),
            Err(error) => Err((field.name, error)),
        };
        if self.filter.as_ref().is_some_and(|filter| filter.asks(Operand::Ip)) {
            return Err((IP.to_owned(), NotOfProgram::Ip));
        }
        let all = |fields: Vec<Field>| fields.into_iter().map(of_program).collect::<Result<Vec<_>, _>>();
        Ok(Self { fields: all(self.fields)?, hidden: all(self.hidden)?, ..self })
    }
}

impl Histogram {
    /// Whether it counts what is of a program.
    ///
    /// # Errors
    /// The name of what is not, and why.
    pub fn is_of_program(&self) -> Result<(), (String, NotOfProgram)> {
        let mut asked =
            self.keys.iter().map(|key| key.operand).chain(self.values.iter().map(|sum| sum.operand));
        if asked.any(|operand| operand == Operand::Ip) {
            Err((IP.to_owned(), NotOfProgram::Ip))
        } else {
            Ok(())
        }
    }
}

impl Fetch {
    fn of_program(self, place: &ProgramPlace) -> Result<Self, NotOfProgram> {
        let register = |register| Base::Saved(place.saved(), register);
        let (base, first) = match self.base {
            Base::Register(own) => (register(own), None),
            Base::Stack(slot) => (register(Register::Rsp), Some(8 * i64::from(slot))),
            Base::Argument(_) | Base::Arguments(_) if place.returns => return Err(NotOfProgram::Argument),
            Base::Argument(n) if matches!(place.at, InFile::Tracepoint { .. }) => (Base::Usdt(n), None),
            Base::Argument(n) => match Register::of_argument(n.into()) {
                Some(own) => (register(own), None),
                None => (register(Register::Rsp), Some(8 * i64::from(n - ON_STACK + 1))),
            },
            // `ret_handler` is told where the function began.
            Base::Place if place.returns => (Base::Argument(1), None),
            Base::Place => (register(Register::Rip), None),
            // Its halves are in registers that the kernel has not saved side by side.
            Base::Arguments(_) => (Base::Unknown, None),
            Base::Kernel(_) => return Err(NotOfProgram::Kernel),
            // The task is the kernel's, and all that it leads to.
            Base::Current
            | Base::Comm
            | Base::Cgroup(_)
            | Base::CommandLine(_)
            | Base::Text(_)
            | Base::Unknown
            | Base::Usdt(_)
            | Base::Saved(..) => return Ok(self),
            Base::Constant(number) => (Base::Constant(number), None),
        };
        let of_user = |hop: Hop| match hop.per_cpu {
            true => Err(NotOfProgram::Kernel),
            false => Ok(Hop { user: true, ..hop }),
        };
        let hops = first.map(Hop::of_user).into_iter().chain(self.hops);
        let read = match self.read {
            Read::Memory(hop, what) => Read::Memory(of_user(hop)?, what),
            Read::Address(hop, bytes) => Read::Address(Hop { user: false, ..of_user(hop)? }, bytes),
            Read::Pointee { what, .. } => Read::Pointee { what, user: true },
            read @ (Read::Word(_) | Read::Extended { .. }) => read,
        };
        Ok(Self { base, hops: hops.map(of_user).collect::<Result<_, _>>()?, read })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Scene;
    use crate::capture::filter::{Filter, Order, Test};
    use crate::linux::testing::Ram;
    use crate::regs::Regs;

    fn place(at: InFile) -> ProgramPlace {
        ProgramPlace { path: "/bin/sh".to_owned(), at, counter: None, returns: false, known: None }
    }

    fn field(base: Base, hops: &[i64], read: Read) -> Field {
        let fetch = Fetch { base, hops: hops.iter().copied().map(Hop::at).collect(), read };
        Field { name: "f".to_owned(), fetch, shape: Shape::Hex }
    }

    fn of_program(base: Base, hops: &[i64], read: Read, returns: bool) -> Result<String, NotOfProgram> {
        at(InFile::Offset(0), (base, hops, read), returns)
    }

    fn at(
        at: InFile,
        (base, hops, read): (Base, &[i64], Read),
        returns: bool,
    ) -> Result<String, NotOfProgram> {
        let place = ProgramPlace { returns, ..place(at) };
        let capture = Capture { fields: vec![field(base, hops, read)], ..Capture::default() };
        let capture = capture.of_program(&place).map_err(|(name, error)| {
            assert_eq!(name, "f");
            error
        })?;
        Ok(capture.fields.first().unwrap().source(returns))
    }

    #[test]
    fn registers_and_memory_are_the_programs() {
        let word = Read::Word(8);
        let text = Read::Memory(Hop::at(8), What::String(64));
        for (base, hops, read, expected) in [
            (Base::Register(Register::Rsi), &[][..], word, "%si"),
            (Base::Argument(0), &[], word, "%di"),
            (Base::Argument(6), &[], word, "+u8(%sp)"),
            (Base::Stack(2), &[], word, "+u16(%sp)"),
            (Base::Register(Register::Rdi), &[16], text, "+u8(+u16(%di))"),
            (Base::Register(Register::Rdi), &[], Read::Address(Hop::at(8), 8), "%di+8"),
            (Base::Constant(0x1000), &[], text, "+u8(\\0x1000)"),
            (Base::Comm, &[], word, "$comm"),
            (Base::Current, &[24], word, "+24($current)"),
        ] {
            assert_eq!(of_program(base, hops, read, false), Ok(expected.to_owned()));
        }
        assert_eq!(of_program(Base::Register(Register::Rax), &[], word, true), Ok("$retval".to_owned()));
    }

    #[test]
    fn arguments_of_its_own_tracepoints_are_where_its_file_says() {
        let usdt = InFile::Tracepoint { provider: "python".to_owned(), name: "line".to_owned() };
        let text = Read::Memory(Hop::at(0), What::String(64));
        assert_eq!(at(usdt.clone(), (Base::Argument(0), &[], text), false), Ok("+u0($arg1)".to_owned()));
        let word = (Base::Argument(7), &[][..], Read::Word(4));
        assert_eq!(at(usdt, word, false), Ok("$arg8".to_owned()));
    }

    #[test]
    fn the_state_of_a_program_is_kept_behind_what_is_shown() {
        let ram = Ram::new();
        let saved = Ram::BASE.add(0x100);
        for n in 0..21 {
            ram.put(saved.add(8 * n), &n.to_le_bytes());
        }
        for (returns, regs) in [
            (false, Regs { rsi: saved.0, ..Regs::default() }),
            (true, Regs { rdx: saved.0, ..Regs::default() }),
        ] {
            let place = ProgramPlace { returns, ..place(InFile::Offset(0)) };
            let fields = vec![field(Base::Saved(place.saved(), Register::R15), &[], Read::Word(8))];
            let mut capture = Capture { fields, ..Capture::default() }.keeping_state(&place);
            let hidden = field(Base::Saved(place.saved(), Register::R14), &[], Read::Word(8));
            capture.count_only(hidden, |own| Filter::Test(own, Test::Number(Order::Equal, 1)));
            let memory = ram.memory();
            let scene = Scene::of_registers(&regs, &memory);
            let mut record = Vec::new();
            assert!(capture.take(&scene, &mut record));
            let state = ProgramState { ip: Gva(16), sp: Gva(19), ax: 10, args: [14, 13, 12, 11, 9, 8] };
            assert_eq!(capture.program_state(&record), Some(state));
            let shown: Vec<_> = capture.values(&record).map(|(_, value)| value.number()).collect();
            assert_eq!(shown, [Some(0)]);
            let cut = record.get(..record.len() - 1).unwrap();
            assert_eq!((capture.program_state(cut), capture.program_state(&[])), (None, None));
        }
        assert_eq!(Capture::default().program_state(&[0; 8]), None);
    }

    #[test]
    fn what_is_the_kernels_or_gone_is_refused() {
        let word = Read::Word(8);
        assert_eq!(of_program(Base::Kernel(Gva(1 << 63)), &[], word, false), Err(NotOfProgram::Kernel));
        assert_eq!(of_program(Base::Argument(1), &[], word, true), Err(NotOfProgram::Argument));
        let own = Read::Address(Hop { per_cpu: true, ..Hop::at(0) }, 8);
        assert_eq!(of_program(Base::Constant(8), &[], own, false), Err(NotOfProgram::Kernel));
    }
}
