//! Carries out what clients of a control socket want, where the session is.
//!
//! What may have to wait for the guest (tracepoints and places in programs are switched by its own functions) is carried out by a
//! thread of its own, so that a guest that stands still can be let go on meanwhile. A client has one call under way, and one more request
//! comes of its end, so that there are few such threads. All else is carried out in the order in which it comes.

use super::frame::{self, Answer, Asked, Change, Chosen, Request, Said, Stop};
use super::held_task::HeldTask;
use super::hex;
use super::live_counters::LiveCounters;
use super::live_probe::{LiveProbe, Title};
use super::physical::{self, VmcoreinfoSymbols};
use super::vcpu::{VcpuLine, by_name};
use crate::output::{AddedProbes, GuestNames, LiveHistogram, RunHistograms};
use crate::record::Address;
use probe_engine::addr::Gva;
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::probe::pace::{GateId, Pace};
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{ProbePlan, Trigger};
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::watch::{Condition, Length, Watch};
use probe_engine::regs::Register;
use probe_engine::request::ProbeRequest;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use vmm::confine::{self, Role};
use vmm::probe::Probe;
use vmm::session::{Command, Handle, KernelPlace, ProbeReport, Standing, StandsFor, StopCause, Stopped};

/// Attends to a server of a control socket.
pub(crate) struct Attendant {
    requests: Box<dyn Read + Send>,
    answers: Box<dyn Write + Send>,
    /// The kernel's symbols.
    symbols: Option<SymbolTable>,
    /// Of the probes so far.
    titles: BTreeMap<ProbeId, Title>,
    /// In which hits of the probes are counted.
    histograms: RunHistograms,
    /// Whoever writes hits is told of probes that are added.
    added: Sender<AddedProbes>,
}

/// What threads that carry something out share.
struct Desk {
    handle: Handle,
    titles: Arc<Mutex<BTreeMap<ProbeId, Title>>>,
    histograms: RunHistograms,
    added: Sender<AddedProbes>,
    answers: Mutex<Box<dyn Write + Send>>,
}

impl Attendant {
    /// One that takes `requests` and sends `answers`. `probes` are registered in this order, and counted in these histograms.
    pub(crate) fn new(
        (answers, requests): (Box<dyn Write + Send>, Box<dyn Read + Send>),
        symbols: Option<SymbolTable>,
        probes: &[ProbeRequest],
        (histograms, added): (RunHistograms, Sender<AddedProbes>),
    ) -> Self {
        let titles = (0..).map(ProbeId).zip(probes.iter().map(Title::from)).collect();
        Self { requests, answers, symbols, titles, histograms, added }
    }

    /// Attends on a thread of its own, by `handle`, until nothing comes any more. The guest does not stand still then.
    ///
    /// # Errors
    /// When this machine is out of threads.
    pub(crate) fn attend(self, handle: Handle) -> io::Result<()> {
        let Self { mut requests, answers, symbols, titles, histograms, added } = self;
        let (titles, answers) = (Arc::new(Mutex::new(titles)), Mutex::new(answers));
        let desk = Arc::new(Desk { handle, titles, histograms, added, answers });
        let attend = move || {
            confine::this_thread_if(true, Role::Control);
            let stops = desk.handle.stops();
            let teller = desk.clone();
            let tell = move || stops.iter().flatten().for_each(|stopped| teller.tell_stopped(&stopped));
            let _ = thread::Builder::new().name("control".to_owned()).spawn(tell);
            let vmcoreinfo = symbols.as_ref().and_then(VmcoreinfoSymbols::of);
            let mut names = GuestNames::new(symbols, None);
            while let Ok(Some(Asked { number, stop, request })) = frame::receive(&mut requests) {
                match request {
                    Request::Pause(still) => {
                        let command = if still { Command::Pause } else { Command::ResumeAfter(stop) };
                        desk.answer(number, desk.done(command));
                    }
                    Request::LetGo => desk.answer(number, desk.done(Command::LetGoAfter(stop))),
                    Request::List => desk.answer(number, desk.list()),
                    Request::Counters => desk.answer(number, desk.counters()),
                    Request::Histograms { name, most } => {
                        desk.answer(number, desk.histograms(name.as_deref(), most, &mut names));
                    }
                    Request::Regs(vcpu) => {
                        desk.answer(number, desk.cpus(vcpu, &mut names, VcpuLine::with_regs))
                    }
                    Request::Stack(vcpu) => {
                        desk.answer(number, desk.cpus(vcpu, &mut names, VcpuLine::with_stack));
                    }
                    Request::Read { at, length, vcpu } => {
                        let read = desk.handle.read(at, length, vcpu).map_err(|error| error.to_string());
                        desk.answer(number, read.map(|bytes| json!({ "bytes": hex::text(&bytes) })));
                    }
                    Request::Kernel => desk.answer(number, desk.kernel()),
                    Request::Step(vcpu) => desk.answer(number, done(desk.handle.step(vcpu))),
                    Request::SetRegs { vcpu, regs } => desk.answer(number, desk.set_regs(vcpu, &regs)),
                    Request::Write { at, bytes, vcpu } => {
                        desk.answer(number, done(desk.handle.write(at, bytes, vcpu)));
                    }
                    Request::Status => desk.answer(number, desk.status()),
                    Request::Physical(asked) => {
                        desk.answer(number, physical::answer(asked, &desk.handle, vmcoreinfo.as_ref()));
                    }
                    Request::Held => desk.answer(number, desk.held()),
                    Request::Release(gate) => desk.answer(number, desk.release(gate.map(GateId))),
                    Request::Quit => desk.answer(number, desk.done(Command::Stop)),
                    Request::Change(change) => {
                        let helper = desk.clone();
                        let carry_out = move || helper.answer(number, helper.carry_out(change));
                        if thread::Builder::new().name("control".to_owned()).spawn(carry_out).is_err() {
                            desk.answer::<()>(number, Err("the host has no thread left".to_owned()));
                        }
                    }
                }
            }
            // Nobody else would let it go on.
            let _ = desk.handle.command(Command::Resume);
        };
        thread::Builder::new().name("control".to_owned()).spawn(attend).map(drop)
    }
}

/// A result without anything in it.
#[derive(Serialize)]
struct Done {}

#[derive(Serialize)]
struct Probes {
    probes: Vec<LiveProbe>,
}

#[derive(Serialize)]
struct Histograms {
    histograms: Vec<LiveHistogram>,
}

#[derive(Serialize)]
struct Status {
    running: bool,
    /// Why it does not.
    stands_for: Option<&'static str>,
}

#[derive(Serialize)]
struct Held {
    held: Vec<HeldTask>,
}

#[derive(Serialize)]
struct Released {
    released: usize,
}

#[derive(Serialize)]
struct Vcpus {
    vcpus: Vec<VcpuLine>,
}

impl Desk {
    fn answer<T: Serialize>(&self, number: u64, result: Result<T, String>) {
        let json = |value: T| serde_json::to_string(&value).map_err(|error| error.to_string());
        let answer = Said::Answer(Answer { number, result: result.and_then(json) });
        let mut answers = lock(&self.answers);
        match frame::send(&mut *answers, &answer) {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                let result = Err("the answer is too long".to_owned());
                let _ = frame::send(&mut *answers, &Said::Answer(Answer { number, result }));
            }
            // A server that is gone takes none.
            _ => {}
        }
    }

    /// Says that the guest has come to stand still.
    fn tell_stopped(&self, Stopped { number, vcpu, why, regs }: &Stopped) {
        let (probe, why) = match why {
            StopCause::Probe(probe) => (Some(probe.0), "probe"),
            StopCause::Step => (None, "step"),
        };
        let how = json!({ "why": why, "probe": probe, "vcpu": vcpu, "regs": by_name(regs) });
        let said = Said::Stopped(Stop { number: *number, probe, how: how.to_string() });
        let _ = frame::send(&mut *lock(&self.answers), &said);
    }

    fn kernel(&self) -> Result<Value, String> {
        let place = self.handle.kernel().map_err(|error| error.to_string())?;
        Ok(match place {
            None => json!({ "text": null, "text_end": null, "slide": null, "is_final": false }),
            Some(KernelPlace { text, text_end, slide, is_final }) => json!({
                "text": Address(text.0),
                "text_end": Address(text_end.0),
                "slide": Address(slide),
                "is_final": is_final,
            }),
        })
    }

    fn set_regs(&self, vcpu: usize, changed: &[(Register, u64)]) -> Result<Done, String> {
        let Standing { cpus, .. } = self.handle.standing().map_err(|error| error.to_string())?;
        let stood = cpus.get(vcpu).ok_or_else(|| format!("the guest has no CPU {vcpu}"))?;
        let mut regs =
            stood.regs.ok_or_else(|| format!("the registers of CPU {vcpu} are not known at this moment"))?;
        changed.iter().for_each(|(register, value)| *register.slot(&mut regs) = *value);
        done(self.handle.set_regs(vcpu, regs))
    }

    /// Adds a watch at which the guest stands still.
    fn watch(&self, at: Gva, length: Length, condition: Condition) -> Result<Probes, String> {
        // The guest may be at its first instruction, where it is not known yet.
        let kernel = self.handle.kernel().map_err(|error| error.to_string())?;
        let kernel = kernel.ok_or("nothing can be watched before it is known where the kernel is")?;
        let watch =
            Watch { name: format!("{at}"), at: Gva(at.0.wrapping_sub(kernel.slide)), length, condition };
        let plan = ProbePlan::new(Trigger::Access).paced(Pace::Stop);
        let ids = self.handle.register_all(vec![Probe::of_plan(Place::Watch(watch), plan)]);
        self.list_of(&ids.map_err(|error| error.to_string())?)
    }

    fn done(&self, command: Command) -> Result<Done, String> {
        self.handle.command(command).map(|_| Done {}).map_err(|error| error.to_string())
    }

    fn carry_out(&self, change: Change) -> Result<Probes, String> {
        match change {
            Change::Add(probes) => self.add(probes),
            Change::Watch { at, length, condition } => self.watch(at, length, condition),
            Change::Remove(chosen) => self.remove(self.chosen(&chosen)?),
            Change::Forget(numbers) => {
                let Probes { probes } = self.list()?;
                let there = probes.iter().map(|probe| probe.id).filter(|id| numbers.contains(id));
                self.remove(there.map(ProbeId).collect())
            }
            Change::Enable(chosen, enabled) => {
                let ids = self.chosen(&chosen)?;
                let command = if enabled { Command::Enable(ids) } else { Command::Disable(ids) };
                self.handle
                    .command(command)
                    .map_err(|error| error.to_string())
                    .and_then(|ids| self.list_of(&ids))
            }
            Change::Arm(armed) => {
                self.done(Command::Arm(armed))?;
                self.list()
            }
        }
    }

    fn remove(&self, ids: Vec<ProbeId>) -> Result<Probes, String> {
        let removed = self.handle.unregister_all(ids).map_err(|error| error.to_string())?;
        let live = self.live(&removed);
        lock(&self.titles).retain(|id, _| removed.iter().all(|probe| probe.id != *id));
        Ok(live)
    }

    fn add(&self, requests: Vec<ProbeRequest>) -> Result<Probes, String> {
        let probes = requests.iter().map(|asked| Probe::of_plan(asked.place.clone(), asked.plan.clone()));
        let probes = probes.collect();
        let (titles, tell, histograms) = (self.titles.clone(), self.added.clone(), self.histograms.clone());
        let told = move |ids: &[ProbeId]| {
            let added: AddedProbes = ids.iter().copied().zip(requests).collect();
            histograms.add_probes(&added);
            lock(&titles).extend(added.iter().map(|(id, asked)| (*id, Title::from(asked))));
            // Those at which the guest stands still are nothing that is observed. Nobody may write hits any more.
            if added.iter().all(|(_, asked)| asked.plan.pace != Some(Pace::Stop)) {
                let _ = tell.send(added);
            }
        };
        let ids = self.handle.register_told(probes, told).map_err(|error| error.to_string())?;
        self.list_of(&ids)
    }

    fn counters(&self) -> Result<LiveCounters, String> {
        let counters = self.handle.counters().map_err(|error| error.to_string())?;
        let Probes { probes } = self.live(&counters.probes);
        Ok(LiveCounters::of(&counters, probes))
    }

    fn histograms(
        &self,
        name: Option<&str>,
        most: usize,
        names: &mut GuestNames,
    ) -> Result<Histograms, String> {
        let counters = self.handle.counters().map_err(|error| error.to_string())?;
        let Standing { slide, modules, .. } = self.handle.standing().map_err(|error| error.to_string())?;
        if let Some(slide) = slide {
            names.change(slide, &modules);
        }
        let histograms = self.histograms.live(&counters.groups, name, most, &|at| names.symbol(at));
        match name.filter(|_| histograms.is_empty()) {
            Some(name) => Err(format!("there is no histogram `{name}`")),
            None => Ok(Histograms { histograms }),
        }
    }

    fn list(&self) -> Result<Probes, String> {
        Ok(self.live(&self.handle.list().map_err(|error| error.to_string())?))
    }

    /// Those of `ids` that there are.
    fn list_of(&self, ids: &[ProbeId]) -> Result<Probes, String> {
        let mut list = self.list()?;
        list.probes.retain(|probe| ids.contains(&ProbeId(probe.id)));
        Ok(list)
    }

    fn live(&self, reports: &[ProbeReport]) -> Probes {
        let titles = lock(&self.titles);
        let live =
            |report: &ProbeReport| LiveProbe::of(report, titles.get(&report.id).unwrap_or(&Title::default()));
        Probes { probes: reports.iter().map(live).collect() }
    }

    /// The probes that somebody means. Nobody means none.
    fn chosen(&self, chosen: &[Chosen]) -> Result<Vec<ProbeId>, String> {
        let Probes { probes } = self.list()?;
        let mut ids = Vec::new();
        for chosen in chosen {
            let before = ids.len();
            match chosen {
                Chosen::Number(number) => {
                    ids.extend(probes.iter().map(|probe| ProbeId(probe.id)).filter(|id| id.0 == *number));
                }
                Chosen::Name(name) => {
                    let own = probes.iter().filter(|probe| probe.is_called(name));
                    ids.extend(own.map(|probe| ProbeId(probe.id)));
                }
            }
            if ids.len() == before {
                return Err(match chosen {
                    Chosen::Number(number) => format!("there is no probe number {number}"),
                    Chosen::Name(name) => format!("there is no probe `{name}`"),
                });
            }
        }
        if ids.is_empty() {
            return Err("no probe is named".to_owned());
        }
        Ok(ids)
    }

    fn status(&self) -> Result<Status, String> {
        let stands_for = self.handle.stands_for().map_err(|error| error.to_string())?;
        let word = |stands_for| match stands_for {
            StandsFor::Command => "pause",
            StandsFor::Splat => "splat",
        };
        Ok(Status { running: stands_for.is_none(), stands_for: stands_for.map(word) })
    }

    fn held(&self) -> Result<Held, String> {
        let held = self.handle.held().map_err(|error| error.to_string())?;
        Ok(Held { held: held.into_iter().map(HeldTask::from).collect() })
    }

    fn release(&self, gate: Option<GateId>) -> Result<Released, String> {
        let released = self.handle.release(gate).map_err(|error| error.to_string())?;
        Ok(Released { released })
    }

    /// Where a CPU stands, or where all do.
    fn cpus(
        &self,
        vcpu: Option<usize>,
        names: &mut GuestNames,
        line: impl Fn(usize, &vmm::session::Stood, &GuestNames) -> VcpuLine,
    ) -> Result<Vcpus, String> {
        let Standing { cpus, slide, modules } = self.handle.standing().map_err(|error| error.to_string())?;
        // Before the kernel is found, nothing has a name.
        let nameless = GuestNames::default();
        let names = match slide {
            Some(slide) => {
                names.change(slide, &modules);
                &*names
            }
            None => &nameless,
        };
        if let Some(none) = vcpu.filter(|id| *id >= cpus.len()) {
            return Err(format!("the guest has no CPU {none}"));
        }
        let wanted = (0..).zip(&cpus).filter(|(id, _)| vcpu.is_none_or(|vcpu| vcpu == *id));
        Ok(Vcpus { vcpus: wanted.map(|(id, stood)| line(id, stood, names)).collect() })
    }
}

fn done<E: ToString>(result: Result<(), E>) -> Result<Done, String> {
    result.map(|()| Done {}).map_err(|error| error.to_string())
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
