//! Calls that detours follow to their return, as the host sees them: the guest takes and frees them by itself.
//!
//! The stub at a function's entry takes an instance, notes down in it where the call returns to, and has it return to the
//! trampoline of that instance instead. The trampoline names the instance, as with the [traps](crate::probe::returns):
//! there is nothing to search. It leads to the stub that the instance names.
//!
//! Each CPU has a pool, in which its instances that are free form a list. The pool is one word: the lower half changes
//! with every change of the list, the upper half is where the first free instance has its word in [`LIVE`], and that
//! word is where the next one has its own, in the same half. All take and give back by compare-exchange. A call may
//! return on another CPU than it began on: its instance goes back to the pool that it came from. While the call lasts,
//! its word in [`LIVE`] is its task (GVA), which no offset looks like.

use super::layout::{CALLS, COUNTERS, INSTANCE, INSTANCES, LIVE, POOL, POOLS, RAN_OUT, TICKETS, TRAMPOLINE};
use crate::addr::{Gpa, Gva};
use crate::memory::{NoMemory, PhysMemory};
use std::collections::HashMap;

/// Offsets in an instance. All are u64 but the probe, a u32.
pub mod instance {
    #![allow(missing_docs, reason = "most say it")]
    /// Where the call returns to (GVA).
    pub const BACK: u64 = 0;
    /// Where it really does, if that is the trampoline of another instance.
    pub const CALLER: u64 = 8;
    /// Where its return address is on the stack (GVA).
    pub const SLOT: u64 = 16;
    /// The time-stamp counter when it began.
    pub const BEGAN: u64 = 24;
    /// The stub that its trampoline leads to (GVA).
    pub const STUB: u64 = 32;
    /// Its pool, as an offset in the data window.
    pub const HOME: u64 = 40;
    /// Where its word in `LIVE` is, behind the first one, in the upper half.
    pub const SELF: u64 = 48;
    pub const PROBE: u64 = 56;
    /// rdi, rsi, rdx, rcx, r8, r9, where they are wanted.
    pub const ARGUMENTS: u64 = 64;
}

/// So often the host tries to give an instance back. A guest that is not hostile lets it at once, or soon.
const TRIES: usize = 1000;

/// The instances of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instances {
    /// The data window.
    window: Gpa,
    /// How many pools there are, one a CPU.
    pools: u32,
}

impl Instances {
    /// Those in the data window at `window` of a guest with so many CPUs.
    #[must_use]
    pub fn new(window: Gpa, cpus: u8) -> Self {
        Self { window, pools: u32::from(cpus).max(1) }
    }

    /// Makes all of them free. No detour may follow calls yet.
    ///
    /// # Errors
    /// The data window is not there.
    pub fn prepare<M: PhysMemory + ?Sized>(&self, memory: &M) -> Result<(), NoMemory> {
        let put = |at: u64, word: u64| memory.write(self.window.add(at), &word.to_le_bytes());
        let mut first = vec![0; self.pools as usize];
        for number in (1..CALLS).rev() {
            let own = word_of(number);
            let at = INSTANCES + u64::from(number) * INSTANCE;
            put(at + instance::HOME, self.home(number))?;
            put(at + instance::SELF, own << 32)?;
            if let Some(first) = first.get_mut(self.pool(number) as usize) {
                put(LIVE + own, std::mem::replace(first, own << 32))?;
            }
        }
        (0..).zip(first).try_for_each(|(pool, first)| put(POOLS + pool * POOL, first))
    }

    /// Lets the probe of this number follow so many calls at a time. None may be followed now.
    ///
    /// # Errors
    /// The data window is not there.
    pub fn limit<M: PhysMemory + ?Sized>(&self, memory: &M, probe: u32, most: u32) -> Result<(), NoMemory> {
        let at = self.window.add(TICKETS).add(8 * u64::from(probe));
        memory.write(at, &u64::from(most).to_le_bytes())
    }

    /// No call of `task` returns any more: frees their instances, and says of which probes they were.
    pub fn forget_task<M: PhysMemory + ?Sized>(&self, memory: &M, task: Gva) -> Vec<u32> {
        let mut freed = Vec::new();
        for (number, live) in self.live(memory) {
            if live == task && self.give_back(memory, number) {
                freed.push(self.probe(memory, number));
            }
        }
        freed
    }

    /// Which of the probes with smaller numbers than `end` have missed a call because no instance was left, since the start.
    pub fn ran_out<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        end: u32,
    ) -> impl Iterator<Item = u32> + use<M> {
        let mut missed = vec![0; end.min(COUNTERS) as usize];
        // Without the window there are none.
        let _ = memory.read(self.window.add(RAN_OUT), &mut missed);
        (0..).zip(missed).filter(|(_, missed)| *missed != 0).map(|(probe, _)| probe)
    }

    /// How many calls of which probe are followed right now.
    #[must_use]
    pub fn outstanding<M: PhysMemory + ?Sized>(&self, memory: &M) -> HashMap<u32, usize> {
        let mut calls = HashMap::new();
        for (number, _) in self.live(memory) {
            *calls.entry(self.probe(memory, number)).or_default() += 1;
        }
        calls
    }

    /// Where calls are going to return that are followed (GVA): the stubs that they go through, and what is behind those.
    pub fn returns<M: PhysMemory + ?Sized>(&self, memory: &M) -> impl Iterator<Item = Gva> {
        let members = [instance::STUB, instance::BACK];
        self.live(memory)
            .flat_map(move |(number, _)| members.map(|member| Gva(self.member(memory, number, member))))
    }

    /// Where the call of instance `number` really returns to, if there is that instance.
    #[must_use]
    pub fn caller<M: PhysMemory + ?Sized>(&self, memory: &M, number: u64) -> Option<Gva> {
        let number = u32::try_from(number).ok().filter(|number| (1..CALLS).contains(number))?;
        Some(Gva(self.member(memory, number, instance::CALLER)))
    }

    /// Those that follow a call, and its task.
    fn live<M: PhysMemory + ?Sized>(&self, memory: &M) -> impl Iterator<Item = (u32, Gva)> + use<M> {
        /// Addresses of the kernel begin here; free instances hold an offset.
        const TASKS: u64 = 1 << 63;
        let mut words = vec![0; CALLS as usize * 8];
        // Without the window there are none.
        let _ = memory.read(self.window.add(LIVE), &mut words);
        let (words, _) = words.as_chunks();
        let words: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
        (0..).zip(words).skip(1).filter(|(_, word)| *word >= TASKS).map(|(number, word)| (number, Gva(word)))
    }

    fn probe<M: PhysMemory + ?Sized>(&self, memory: &M, number: u32) -> u32 {
        self.member(memory, number, instance::PROBE) as u32
    }

    fn member<M: PhysMemory + ?Sized>(&self, memory: &M, number: u32, member: u64) -> u64 {
        self.word(memory, INSTANCES + u64::from(number) * INSTANCE + member)
    }

    /// Gives an instance back that no call returns through any more, and its probe's ticket.
    fn give_back<M: PhysMemory + ?Sized>(&self, memory: &M, number: u32) -> bool {
        let (home, own) = (self.window.add(self.home(number)), word_of(number));
        let probe = self.probe(memory, number) % COUNTERS;
        let ticket = self.window.add(TICKETS).add(8 * u64::from(probe));
        let is_back = self.change(memory, home, |pool| {
            let next = (pool >> 32 << 32).to_le_bytes();
            memory.write(self.window.add(LIVE + own), &next).ok()?;
            Some(own << 32 | u64::from((pool as u32).wrapping_add(1)))
        });
        is_back && self.change(memory, ticket, |tickets| Some(tickets.wrapping_add(1)))
    }

    fn change<M: PhysMemory + ?Sized>(&self, memory: &M, at: Gpa, new: impl Fn(u64) -> Option<u64>) -> bool {
        (0..TRIES).any(|_| {
            let mut word = [0; 8];
            if memory.read(at, &mut word).is_err() {
                return false;
            }
            let old = u64::from_le_bytes(word);
            new(old).is_some_and(|new| memory.compare_exchange(at, old, new).unwrap_or(false))
        })
    }

    fn word<M: PhysMemory + ?Sized>(&self, memory: &M, at: u64) -> u64 {
        let mut word = [0; 8];
        match memory.read(self.window.add(at), &mut word) {
            Ok(()) => u64::from_le_bytes(word),
            Err(NoMemory(_)) => 0,
        }
    }

    fn pool(&self, number: u32) -> u32 {
        (number / (CALLS / self.pools)).min(self.pools - 1)
    }

    /// The pool of an instance, as an offset in the data window.
    fn home(&self, number: u32) -> u64 {
        POOLS + u64::from(self.pool(number)) * POOL
    }
}

/// Where the word of an instance is, behind the first one.
fn word_of(number: u32) -> u64 {
    u64::from(number) * TRAMPOLINE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detour::layout;
    use crate::memory::testing::Ram;

    const WINDOW: Gpa = Gpa(0);
    const TASK: Gva = Gva(0xffff_8880_0123_4560);

    fn word(ram: &Ram, at: u64) -> u64 {
        let mut word = [0; 8];
        ram.read(Gpa(at), &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    fn put(ram: &Ram, at: u64, word: u64) {
        ram.write(Gpa(at), &word.to_le_bytes()).unwrap();
    }

    fn instances(cpus: u8) -> (Ram, Instances) {
        let (ram, instances) = (Ram::new(layout::SIZE as usize), Instances::new(WINDOW, cpus));
        instances.prepare(&ram).unwrap();
        (ram, instances)
    }

    /// As a stub does it.
    fn take(ram: &Ram, cpu: u64, probe: u32, task: Gva) -> Option<u32> {
        let pool = word(ram, POOLS + cpu * POOL);
        let own = pool >> 32;
        if own == 0 {
            return None;
        }
        let number = (own / TRAMPOLINE) as u32;
        put(ram, POOLS + cpu * POOL, word(ram, LIVE + own) | u64::from(pool as u32 + 1));
        put(ram, LIVE + own, task.0);
        put(ram, INSTANCES + u64::from(number) * INSTANCE + instance::PROBE, probe.into());
        Some(number)
    }

    #[test]
    fn every_cpu_has_its_share_and_none_is_there_twice() {
        for cpus in [1, 2, 3, 255] {
            let (ram, _) = instances(cpus);
            let mut seen = vec![false; CALLS as usize];
            for cpu in 0..u64::from(cpus) {
                let mine = std::iter::from_fn(|| take(&ram, cpu, 1, TASK)).inspect(|number| {
                    assert!(!std::mem::replace(&mut seen[*number as usize], true), "{number}");
                });
                assert!(mine.count() as u32 >= CALLS / u32::from(cpus) - 1);
            }
            assert_eq!(seen.iter().filter(|seen| !**seen).count(), 1, "number 0 is none");
        }
    }

    #[test]
    fn a_dead_task_gives_back_what_it_had_to_where_it_came_from() {
        let (ram, instances) = instances(2);
        instances.limit(&ram, 7, 3).unwrap();
        let other = Gva(TASK.0 + 64);
        let numbers = [(0, TASK), (1, TASK), (1, other)].map(|(cpu, task)| take(&ram, cpu, 7, task).unwrap());
        assert_eq!(instances.outstanding(&ram), HashMap::from([(7, 3)]));
        assert_eq!(instances.forget_task(&ram, TASK), [7, 7]);
        assert!(instances.forget_task(&ram, TASK).is_empty());
        assert_eq!(instances.outstanding(&ram), HashMap::from([(7, 1)]));
        assert_eq!(word(&ram, TICKETS + 7 * 8), 5, "what the stubs take is not taken here");
        assert_eq!([0, 1].map(|cpu| take(&ram, cpu, 7, TASK).unwrap()), [numbers[0], numbers[1]]);
    }

    #[test]
    fn who_found_no_instance_is_told() {
        let (ram, instances) = instances(2);
        for probe in [3, 5, COUNTERS - 1] {
            ram.write(WINDOW.add(RAN_OUT + u64::from(probe)), &[1]).unwrap();
        }
        assert_eq!(instances.ran_out(&ram, 5).collect::<Vec<_>>(), [3]);
        assert_eq!(instances.ran_out(&ram, u32::MAX).collect::<Vec<_>>(), [3, 5, COUNTERS - 1]);
        instances.limit(&ram, COUNTERS - 1, u32::MAX).unwrap();
        let last = std::iter::from_fn(|| take(&ram, 1, 3, TASK)).count();
        assert!(last > 0);
        assert_eq!(instances.ran_out(&ram, u32::MAX).count(), 3, "nothing else lies there");
    }

    #[test]
    fn a_guest_that_spoils_them_does_no_harm() {
        let (ram, instances) = instances(2);
        for number in 0..CALLS {
            put(&ram, LIVE + word_of(number), TASK.0);
        }
        for pool in 0..2 {
            put(&ram, POOLS + pool * POOL, u64::MAX);
        }
        put(&ram, INSTANCES + INSTANCE + instance::PROBE, u64::MAX);
        put(&ram, INSTANCES + INSTANCE + instance::HOME, u64::MAX);
        assert_eq!(instances.returns(&ram).count() as u32, 2 * (CALLS - 1));
        assert_eq!(instances.outstanding(&ram).values().sum::<usize>() as u32, CALLS - 1);
        assert!(!instances.forget_task(&ram, TASK).is_empty());
        assert_eq!(instances.caller(&ram, u64::MAX), None);
        assert_eq!(instances.caller(&ram, 0), None);
    }
}
