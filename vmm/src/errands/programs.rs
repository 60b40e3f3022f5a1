//! Places in programs, for which the guest's own kernel calls others: registered and unregistered by its own functions.
//!
//! All is done by a thread of its own, which waits for the guest. A [consumer](probe_engine::linux::uprobes) lies in our data window, and
//! its file is held as long as it is registered.

use super::caller::{Caller, Failed, Gone};
use super::functions::error;
use super::program_file::{Buffer, FoundPlaces, Places, Program};
use probe_engine::addr::Gva;
use probe_engine::linux::program_place::ProgramPlace;
use probe_engine::linux::uprobes::{Registration, UprobeCalls};
use probe_engine::probe::table::ProbeId;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// A place that is to be registered, or no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlaceStep {
    /// Whose it is.
    pub(crate) probe: ProbeId,
    pub(crate) place: ProgramPlace,
    /// Where its consumer lies (GVA).
    pub(crate) consumer: Gva,
    pub(crate) on: bool,
}

/// What came of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is registered, or is no more, as was wanted.
    Done,
    /// It stands for these places. None of them is registered.
    Found(FoundPlaces),
    /// There is no such file, so far.
    Missing,
    /// It cannot be, and why.
    Refused(String),
}

/// A consumer that is registered.
struct Registered {
    /// `struct path`, which is held.
    path: [u64; 2],
    inode: u64,
    offset: u64,
    /// What registering has returned, where that is the uprobe.
    uprobe: u64,
}

/// All consumers that are registered, by where they lie (GVA).
#[derive(Default)]
pub(crate) struct Consumers(BTreeMap<Gva, Registered>);

/// Carries steps out.
pub(crate) struct PlacePrograms<'a> {
    pub(crate) caller: Caller,
    pub(crate) calls: UprobeCalls,
    pub(crate) consumers: &'a mut Consumers,
}

impl PlacePrograms<'_> {
    /// All `steps`, in the order of their files. What is behind the first one at which the guest is gone comes to nothing.
    pub(crate) fn carry_out(&mut self, steps: Vec<PlaceStep>) -> Vec<(PlaceStep, Placed)> {
        let mut done = Vec::new();
        // The guest takes the file's results with it.
        let _ = self.all(steps, &mut done);
        done
    }

    fn all(&mut self, steps: Vec<PlaceStep>, done: &mut Vec<(PlaceStep, Placed)>) -> Result<(), Gone> {
        let buffer = match self.caller.call(self.calls.vmalloc, &[Buffer::SIZE])? {
            0 => {
                // The others stay as they are: nobody is called for them any more.
                let refused = || Placed::Refused("the guest has no memory for it".to_owned());
                done.extend(steps.into_iter().filter(|step| step.on).map(|step| (step, refused())));
                return Ok(());
            }
            start => Buffer(Gva(start)),
        };
        let (mut on, mut off): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.on);
        // Whoever sees a call return has seen it begin: what sees that comes first, and goes last.
        on.sort_by_key(|step| step.place.returns);
        off.sort_by_key(|step| !step.place.returns);
        self.take_off(off, &buffer, done)?;
        let mut files = BTreeMap::<String, Vec<PlaceStep>>::new();
        for step in on {
            files.entry(step.place.path.clone()).or_default().push(step);
        }
        for (path, steps) in files {
            self.put_on(&path, steps, &buffer, done)?;
        }
        self.caller.call(self.calls.vfree, &[buffer.0.0])?;
        Ok(())
    }

    /// Unregisters these. A consumer is empty and its file let go when nobody is called for it any more.
    fn take_off(
        &mut self,
        steps: Vec<PlaceStep>,
        buffer: &Buffer,
        done: &mut Vec<(PlaceStep, Placed)>,
    ) -> Result<(), Gone> {
        let mut gone = Vec::new();
        for step in &steps {
            let Some(known) = self.consumers.0.remove(&step.consumer) else { continue };
            match self.calls.register {
                Registration::ByPlace { unregister, .. } => {
                    self.caller.call(unregister, &[known.inode, known.offset, step.consumer.0])?
                }
                Registration::ByUprobe { unregister, .. } => {
                    self.caller.call(unregister, &[known.uprobe, step.consumer.0])?
                }
            };
            gone.push((step.consumer, known));
        }
        if let Registration::ByUprobe { sync, .. } = self.calls.register
            && !gone.is_empty()
        {
            self.caller.call(sync, &[])?;
        }
        for (consumer, known) in gone {
            // Both are there as long as the kernel is.
            let _ = self.caller.memory().write(consumer, &[0; 16]);
            self.let_go(known.path, buffer)?;
        }
        done.extend(steps.into_iter().map(|step| (step, Placed::Done)));
        Ok(())
    }

    fn let_go(&self, path: [u64; 2], buffer: &Buffer) -> Result<(), Gone> {
        if buffer.put_path(&self.caller, path).is_ok() {
            self.caller.call(self.calls.path_put, &[buffer.path().0])?;
        }
        Ok(())
    }

    /// Registers these, which are in the file at `path`.
    fn put_on(
        &mut self,
        path: &str,
        steps: Vec<PlaceStep>,
        buffer: &Buffer,
        done: &mut Vec<(PlaceStep, Placed)>,
    ) -> Result<(), Gone> {
        let came = |failed: &Failed| match failed {
            Failed::Gone => Err(Gone),
            Failed::Missing => Ok(Placed::Missing),
            Failed::Refused(reason) => Ok(Placed::Refused(reason.clone())),
        };
        let held = match self.look_up(path, buffer) {
            Ok(held) => held,
            Err(failed) => {
                let placed = came(&failed)?;
                done.extend(steps.into_iter().map(|step| (step, placed.clone())));
                return Ok(());
            }
        };
        let mut program = Program::open(&self.caller, &self.calls, buffer, held);
        for step in steps {
            let placed = match &mut program {
                Err(failed) => came(failed)?,
                Ok(program) => match program.find(&self.caller, &self.calls, buffer, &step.place) {
                    Ok(Places::Several(places)) => Placed::Found(places),
                    Ok(Places::One(offset)) => {
                        let registered = Self::register(&self.caller, &self.calls, &step, program, offset);
                        match registered {
                            Ok(uprobe) => {
                                // It is there since it was looked up.
                                self.caller.call(self.calls.path_get, &[buffer.path().0])?;
                                let (path, inode) = (program.path, program.inode);
                                let known = Registered { path, inode, offset, uprobe };
                                self.consumers.0.insert(step.consumer, known);
                                Placed::Done
                            }
                            Err(failed) => came(&failed)?,
                        }
                    }
                    Err(failed) => came(&failed)?,
                },
            };
            done.push((step, placed));
        }
        if let Ok(program) = program {
            self.caller.call(self.calls.fput, &[program.file])?;
        }
        self.let_go(held, buffer)
    }

    /// The `struct path` that the guest has at `path`, which is held then.
    fn look_up(&self, path: &str, buffer: &Buffer) -> Result<[u64; 2], Failed> {
        /// include/linux/namei.h
        const LOOKUP_FOLLOW: u64 = 1;
        let name = [path.as_bytes(), b"\0"].concat();
        if name.len() > Buffer::LONGEST {
            return Err(Failed::Refused("its path is longer than any".to_owned()));
        }
        self.caller.memory().write(buffer.name(), &name)?;
        let args = [buffer.name().0, LOOKUP_FOLLOW, buffer.path().0];
        match failure(self.caller.call(self.calls.kern_path, &args)?) {
            Some(Errno::NOENT | Errno::NOTDIR) => Err(Failed::Missing),
            Some(error) => Err(Failed::Refused(format!("the guest does not find its file: {error}"))),
            None => {
                let memory = self.caller.memory();
                Ok([memory.read_u64(buffer.path())?, memory.read_u64(buffer.path().add(8))?])
            }
        }
    }

    /// Registers the consumer of `step`. Gives the uprobe, where the kernel says that.
    fn register(
        caller: &Caller,
        calls: &UprobeCalls,
        step: &PlaceStep,
        program: &Program,
        offset: u64,
    ) -> Result<u64, Failed> {
        let no_op = calls.no_op.add(caller.slide);
        caller.memory().write(step.consumer, &UprobeCalls::consumer(no_op, step.place.returns))?;
        let counter = step.place.counter.unwrap_or(0);
        let (Registration::ByPlace { register, .. } | Registration::ByUprobe { register, .. }) =
            calls.register;
        let returned = caller.call(register, &[program.inode, offset, counter, step.consumer.0])?;
        let failed = match calls.register {
            Registration::ByPlace { .. } => failure(returned),
            Registration::ByUprobe { .. } => error(returned),
        };
        match failed {
            None => Ok(returned),
            Some(error) => {
                let _ = caller.memory().write(step.consumer, &[0; 16]);
                Err(Failed::Refused(format!("the guest's kernel has not registered it: {error}")))
            }
        }
    }
}

/// The error that a function has returned as an `int`.
fn failure(returned: u64) -> Option<Errno> {
    error(i64::from((returned as u32).cast_signed()).cast_unsigned())
}
