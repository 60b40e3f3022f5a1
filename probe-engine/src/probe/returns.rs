//! Instances of a return probe: one for each call that is followed to its return.
//!
//! The call's return address is replaced by the address of a trampoline, and every instance has a trampoline of
//! its own. A return therefore names its instance: there is nothing to search, and recursion, preemption, tail
//! calls and a return on another vCPU need no further thought. Task and stack slot, by which others find an
//! instance, are kept to recognise calls that will never return.
//!
//! All is lock-free: a bit says that an instance is taken, its task says that it is live. An instance becomes free
//! once, by its return or because its call is dead. Each vCPU looks for a free one among its own first, so that two of
//! them seldom meet in a cache line.

use crate::addr::Gva;
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A call that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The task that makes it: address of its `task_struct` (GVA).
    pub task: Gva,
    /// The function, where its probe stands (GVA).
    pub function: Gva,
    /// Where its return address was on the stack (GVA).
    pub slot: Gva,
    /// That return address (GVA).
    pub back: Gva,
    /// When it began.
    pub ticks: u64,
    /// The arguments in registers that it was made with, see [`Regs::args`](crate::regs::Regs::args).
    pub args: [u64; 6],
}

/// The instances of one return probe. `D` is what the user keeps with each.
pub struct Pool<D> {
    first: u32,
    instances: Box<[CachePadded<Instance<D>>]>,
    /// One bit an instance.
    taken: Box<[CachePadded<AtomicU64>]>,
    /// How many instances share a word of those.
    word: u32,
}

struct Instance<D> {
    /// 0: not live. Written last when it goes live, first when it ends.
    task: AtomicU64,
    function: AtomicU64,
    slot: AtomicU64,
    back: AtomicU64,
    ticks: AtomicU64,
    args: [AtomicU64; 6],
    data: AtomicCell<Option<Box<D>>>,
}

/// Stands for a task that is not known.
const NO_TASK: u64 = u64::MAX;

impl<D> Pool<D> {
    /// `size` instances for `vcpus` vCPUs, of which the first has the trampoline number `first`.
    #[must_use]
    pub fn new(first: u32, size: u32, vcpus: u32) -> Self {
        let instance = |_| {
            CachePadded::new(Instance {
                task: AtomicU64::new(0),
                function: AtomicU64::new(0),
                slot: AtomicU64::new(0),
                back: AtomicU64::new(0),
                ticks: AtomicU64::new(0),
                args: [const { AtomicU64::new(0) }; 6],
                data: AtomicCell::new(None),
            })
        };
        let word = size.div_ceil(vcpus.max(1)).clamp(1, u64::BITS);
        Self {
            first,
            instances: (0..size).map(instance).collect(),
            taken: (0..size.div_ceil(word)).map(|_| CachePadded::default()).collect(),
            word,
        }
    }

    /// The numbers of its trampolines.
    #[must_use]
    pub fn numbers(&self) -> Range<u32> {
        self.first..self.first + self.instances.len() as u32
    }

    /// Takes a free instance for a call on vCPU `vcpu`; `None` when all are in use. It has to go
    /// [live](Self::follow) or be [released](Self::release).
    #[must_use]
    pub fn reserve(&self, vcpu: usize) -> Option<u32> {
        let words = (0..).zip(&self.taken);
        let own = vcpu % self.taken.len().max(1);
        for (word, taken) in words.clone().skip(own).chain(words.take(own)) {
            let mut now = taken.load(Ordering::Relaxed);
            loop {
                let bit = (!now).trailing_zeros();
                let number = word * self.word + bit;
                if bit >= self.word || number as usize >= self.instances.len() {
                    break;
                }
                match taken.compare_exchange_weak(now, now | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(self.first + number),
                    Err(changed) => now = changed,
                }
            }
        }
        None
    }

    /// Gives a reserved instance back.
    pub fn release(&self, number: u32) {
        let index = number.wrapping_sub(self.first);
        if let Some(taken) = self.taken.get((index / self.word) as usize) {
            taken.fetch_and(!(1 << (index % self.word)), Ordering::Release);
        }
    }

    /// Follows `call` with a reserved instance. Its trampoline must be in the call's slot by now.
    pub fn follow(&self, number: u32, call: Call, data: Option<Box<D>>) {
        let Some(instance) = self.instance(number) else { return };
        instance.function.store(call.function.0, Ordering::Relaxed);
        instance.slot.store(call.slot.0, Ordering::Relaxed);
        instance.back.store(call.back.0, Ordering::Relaxed);
        instance.ticks.store(call.ticks, Ordering::Relaxed);
        for (kept, arg) in instance.args.iter().zip(call.args) {
            kept.store(arg, Ordering::Relaxed);
        }
        instance.data.store(data);
        instance.task.store(stored(call.task), Ordering::Release);
    }

    /// Whether a call is followed that `task` makes.
    #[must_use]
    pub fn follows(&self, task: Gva) -> bool {
        self.instances.iter().any(|instance| instance.task.load(Ordering::Acquire) == stored(task))
    }

    /// Where the call of instance `number` returns to, if it is live.
    #[must_use]
    pub fn back(&self, number: u32) -> Option<Gva> {
        let instance = self.instance(number)?;
        (instance.task.load(Ordering::Acquire) != 0).then(|| instance.call().back)
    }

    /// Where all calls that are followed return to.
    pub fn backs(&self) -> impl Iterator<Item = Gva> {
        self.numbers().filter_map(|number| self.back(number))
    }

    /// The call of instance `number` returns. `None` when it is not live: then nobody can say where to.
    pub fn leave(&self, number: u32) -> Option<(Call, Option<Box<D>>)> {
        let instance = self.instance(number)?;
        let task = instance.task.swap(0, Ordering::Acquire);
        if task == 0 {
            return None;
        }
        let call = Call { task: loaded(task), ..instance.call() };
        let data = instance.data.take();
        self.release(number);
        Some((call, data))
    }

    /// No call of `task` returns any more. Returns how many instances that frees.
    pub fn forget_task(&self, task: Gva) -> usize {
        self.forget(|call| call.task == task)
    }

    /// Frees the instances of calls that cannot return, as `task` now runs at stack pointer `rsp`: what lay
    /// below on the same stack is gone. Linux aligns a task's stack to its size, [`STACK`] at least.
    pub fn forget_below(&self, task: Gva, rsp: Gva) -> usize {
        let stack = |at: Gva| at.0 / STACK;
        self.forget(|call| call.task == task && call.slot < rsp && stack(call.slot) == stack(rsp))
    }

    fn forget(&self, is_dead: impl Fn(Call) -> bool) -> usize {
        let mut freed = 0;
        for (number, instance) in (self.first..).zip(&self.instances) {
            let task = instance.task.load(Ordering::Acquire);
            let call = Call { task: loaded(task), ..instance.call() };
            let ends =
                || instance.task.compare_exchange(task, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if task != 0 && is_dead(call) && ends() {
                drop(instance.data.take());
                self.release(number);
                freed += 1;
            }
        }
        freed
    }

    /// How many calls are followed right now.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    fn instance(&self, number: u32) -> Option<&Instance<D>> {
        Some(self.instances.get(number.checked_sub(self.first)? as usize)?)
    }
}

/// The size and alignment of a task's stack on x86-64 (`THREAD_SIZE` in arch/x86/include/asm/page_64_types.h).
pub const STACK: u64 = 16 << 10;

impl<D> Instance<D> {
    fn call(&self) -> Call {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Call {
            task: Gva(0),
            function: Gva(get(&self.function)),
            slot: Gva(get(&self.slot)),
            back: Gva(get(&self.back)),
            ticks: get(&self.ticks),
            args: self.args.each_ref().map(get),
        }
    }
}

fn stored(task: Gva) -> u64 {
    if task.0 == 0 { NO_TASK } else { task.0 }
}

fn loaded(task: u64) -> Gva {
    if task == NO_TASK { Gva(0) } else { Gva(task) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    fn call(task: u64, slot: u64) -> Call {
        let (function, back) = (Gva(slot ^ 0xffff), Gva(slot ^ 0xff));
        let args = [1, 2, 3, 4, 5, 6].map(|n| slot + n);
        Call { task: Gva(task), function, slot: Gva(slot), back, ticks: slot + 1, args }
    }

    fn follow(pool: &Pool<String>, call: Call) -> Option<u32> {
        let number = pool.reserve(0)?;
        pool.follow(number, call, Some(Box::new(format!("{}", call.slot))));
        Some(number)
    }

    #[test]
    fn recursion_beyond_the_instances_is_missed_and_returns_in_any_order_are_right() {
        let pool = Pool::new(32, 10, 1);
        let calls: Vec<Call> = (0..50).map(|depth| call(1, 0x4000 - 16 * depth)).collect();
        let numbers: Vec<Option<u32>> = calls.iter().map(|call| follow(&pool, *call)).collect();
        assert_eq!(numbers.iter().flatten().count(), 10);
        assert_eq!(numbers.iter().filter(|n| n.is_none()).count(), 40);
        assert_eq!(numbers.iter().flatten().copied().collect::<Vec<_>>(), (32..42).collect::<Vec<_>>());
        for (call, number) in calls.iter().zip(&numbers).rev() {
            if let Some(number) = number {
                assert_eq!(pool.back(*number), Some(call.back));
                let (left, data) = pool.leave(*number).unwrap();
                assert_eq!(pool.back(*number), None);
                assert_eq!((left, *data.unwrap()), (*call, call.slot.to_string()));
                assert!(pool.leave(*number).is_none(), "a return that nobody follows");
            }
        }
        assert_eq!(pool.outstanding(), 0);
        assert!(pool.leave(31).is_none() && pool.leave(42).is_none());
    }

    #[test]
    fn a_dead_task_leaves_no_instance_behind() {
        let pool = Pool::new(0, 100, 1);
        for task in 1..=100 {
            follow(&pool, call(task % 10 + 1, task * 0x100)).unwrap();
        }
        assert_eq!(pool.reserve(0), None);
        assert_eq!(pool.forget_task(Gva(3)), 10);
        assert_eq!(pool.forget_task(Gva(3)), 0);
        assert_eq!(pool.outstanding(), 90);
        let unfinished = pool.reserve(0).unwrap();
        assert_eq!(pool.forget_task(Gva(0)), 0, "an instance that is not live yet is nobody's");
        pool.release(unfinished);
        // Without a known task, instances still return.
        let number = follow(&pool, call(0, 8)).unwrap();
        assert_eq!(pool.leave(number).unwrap().0, call(0, 8));
    }

    #[test]
    fn what_lies_below_the_stack_pointer_has_returned() {
        let pool = Pool::new(0, 4, 1);
        for slot in [0x8_0100, 0x8_0200, 0x8_0300, 0x7_ff00] {
            follow(&pool, call(5, slot)).unwrap();
        }
        assert_eq!(pool.forget_below(Gva(6), Gva(0x8_0300)), 0, "another task's");
        assert_eq!(pool.forget_below(Gva(5), Gva(0x8_0300)), 2, "neither the slot itself nor another stack");
        assert_eq!(pool.outstanding(), 2);
    }

    #[test]
    fn each_vcpu_has_its_own_instances_first_and_takes_those_of_others_then() {
        let pool = Pool::<String>::new(0, 10, 4);
        let taken: Vec<Option<u32>> = (0..12).map(|_| pool.reserve(2)).collect();
        let expected = [6, 7, 8, 9, 0, 1, 2, 3, 4, 5].map(Some);
        assert_eq!(taken[..10], expected);
        assert_eq!(taken[10..], [None, None]);
        pool.release(4);
        assert_eq!((pool.outstanding(), pool.reserve(3), pool.reserve(3)), (9, Some(4), None));
        // More vCPUs than instances.
        let pool = Pool::<String>::new(0, 2, 8);
        assert_eq!([5, 5, 5].map(|vcpu| pool.reserve(vcpu)), [Some(1), Some(0), None]);
    }

    #[test]
    fn threads_never_share_an_instance() {
        const ROUNDS: usize = 20_000;
        const THREADS: usize = 4;
        const INSTANCES: u32 = 5;
        // The first round in which each thread wants three. There they wait for each other, for else they might
        // run one after the other.
        const MEETING: usize = 3;
        let pool = Pool::<String>::new(0, INSTANCES, 2);
        let missed = AtomicUsize::new(0);
        let all_hold_theirs = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for task in 1..=THREADS as u64 {
                let (pool, missed, all_hold_theirs) = (&pool, &missed, &all_hold_theirs);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mine: Vec<(u32, Call)> = (0..round as u64 % 4)
                            .filter_map(|depth| {
                                let call = call(task, (task << 32) + depth * 8);
                                let number = pool.reserve(task as usize);
                                if number.is_none() {
                                    missed.fetch_add(1, Ordering::Relaxed);
                                }
                                pool.follow(number?, call, None);
                                Some((number?, call))
                            })
                            .collect();
                        let different: HashSet<u32> = mine.iter().map(|(number, _)| *number).collect();
                        assert_eq!(different.len(), mine.len());
                        if round == MEETING {
                            all_hold_theirs.wait();
                        }
                        for (number, call) in mine {
                            assert_eq!(pool.leave(number).unwrap().0, call);
                        }
                    }
                });
            }
        });
        assert_eq!(pool.outstanding(), 0);
        assert!(missed.into_inner() >= MEETING * THREADS - INSTANCES as usize);
    }
}
