//! What the findings mean: rows for people, and one verdict.

use super::{BreakpointDelivery, Contract, Finding};
use serde::Serialize;

/// One line of the table that `vmm doctor` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was checked.
    pub name: &'static str,
    /// What it is good for.
    pub meaning: &'static str,
    /// What was seen.
    pub result: String,
    /// It is as it should be.
    pub ok: bool,
    /// No guest with probes runs without it.
    pub needed: bool,
}

/// Why a KVM cannot run guests with probes, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Not even a few instructions.
    #[error("this KVM does not run a guest of a few instructions ({0})")]
    Runs(String),
    /// No VMX and no SVM behind it.
    #[error("this KVM emulates the guest kernel's instructions, and not all of them ({0})")]
    EmulatedExecution(String),
    /// Neither intercepted nor reflected.
    #[error(
        "on this KVM a breakpoint in the guest neither comes to us nor can be caught on the guest's handler ({0})"
    )]
    NoBreakpoint(String),
    /// Linux does not survive its own boot-time test of breakpoints.
    #[error("this KVM does not give a guest its own breakpoints back ({0})")]
    NoGiveBack(String),
    /// The boot cannot be followed.
    #[error("this KVM has no working hardware execution breakpoints ({0})")]
    NoExecutionBreakpoint(String),
    /// A vCPU cannot be stopped or continued with the right registers.
    #[error("this KVM does not keep a stopped guest's registers right ({0})")]
    Registers(String),
}

impl Contract {
    /// How breakpoints come to us here, if they do.
    #[must_use]
    pub fn delivery(&self) -> Option<BreakpointDelivery> {
        self.delivery
    }

    /// Whether guests with probes run here. Data breakpoints and single steps are not asked for: only a feature
    /// that uses them misses them.
    ///
    /// # Errors
    /// [`Unfit`], the reason. Where several things fail, that which explains the others.
    pub fn verdict(&self) -> Result<(), Unfit> {
        type Reason = fn(String) -> Unfit;
        let needs: [(&Finding, Reason); 7] = [
            (&self.port_exit, Unfit::Runs),
            (&self.native_execution, Unfit::EmulatedExecution),
            (&self.execution_breakpoint, Unfit::NoExecutionBreakpoint),
            (&self.breakpoint, Unfit::NoBreakpoint),
            (&self.give_back, Unfit::NoGiveBack),
            (&self.access_completion, Unfit::Registers),
            (&self.shared_registers, Unfit::Registers),
        ];
        match needs.into_iter().find(|(finding, _)| !finding.ok) {
            Some((finding, unfit)) => Err(unfit(finding.saw.clone())),
            None => Ok(()),
        }
    }

    /// The findings as a table.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |name, meaning, finding: &Finding, needed| {
            let Finding { ok, saw } = finding.clone();
            Row { name, meaning, result: saw, ok, needed }
        };
        vec![
            row("guest runs", "a guest starts, and its port accesses come to vmm", &self.port_exit, true),
            row(
                "execution",
                "the processor itself executes the guest's kernel: as fast as it is, and every instruction works",
                &self.native_execution,
                true,
            ),
            row("breakpoint", "a probe's int3 in the guest's kernel is noticed", &self.breakpoint, true),
            row(
                "give back",
                "the guest gets the int3s that are its own, so it boots undisturbed",
                &self.give_back,
                true,
            ),
            row(
                "execution DR",
                "a hardware breakpoint stops at an instruction: early boot can be followed",
                &self.execution_breakpoint,
                true,
            ),
            row(
                "data DR",
                "a hardware breakpoint stops at a store: watchpoints work",
                &self.data_breakpoint,
                false,
            ),
            row("single step", "one instruction at a time: a debugger can step", &self.single_step, false),
            row(
                "shared registers",
                "a hit costs one system call (KVM_CAP_SYNC_REGS)",
                &self.shared_registers,
                true,
            ),
            row(
                "access completion",
                "a guest can be stopped in the middle of a port access",
                &self.access_completion,
                true,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Contract {
        let good = || Finding { ok: true, saw: "works".to_owned() };
        Contract {
            port_exit: good(),
            access_completion: good(),
            shared_registers: good(),
            shared_registers_capability: 7,
            native_execution: good(),
            breakpoint: good(),
            delivery: Some(BreakpointDelivery::Reflected),
            give_back: good(),
            execution_breakpoint: good(),
            data_breakpoint: good(),
            single_step: good(),
        }
    }

    fn bad() -> Finding {
        Finding { ok: false, saw: "nothing".to_owned() }
    }

    #[test]
    fn the_verdict_names_what_explains_the_rest() {
        let contract = Contract {
            native_execution: bad(),
            breakpoint: bad(),
            delivery: None,
            give_back: bad(),
            ..good()
        };
        assert_eq!(contract.verdict(), Err(Unfit::EmulatedExecution("nothing".to_owned())));
        let contract =
            Contract { execution_breakpoint: bad(), breakpoint: bad(), give_back: bad(), ..good() };
        assert_eq!(contract.verdict(), Err(Unfit::NoExecutionBreakpoint("nothing".to_owned())));
    }

    #[test]
    fn the_verdict_and_the_rows_agree_on_what_is_needed() {
        assert_eq!(good().verdict(), Ok(()));
        let without_extras = Contract { data_breakpoint: bad(), single_step: bad(), ..good() };
        assert_eq!(without_extras.verdict(), Ok(()));
        assert!(without_extras.rows().iter().all(|row| row.ok || !row.needed));
        let needed = good().rows().iter().filter(|row| row.needed).count();
        assert_eq!(needed, 7);
    }

    #[test]
    fn field_names_are_stable() {
        let json = serde_json::to_value(good()).unwrap();
        assert_eq!(json["delivery"], "reflected");
        assert_eq!(json["breakpoint"]["ok"], true);
        assert_eq!(json["shared_registers_capability"], 7);
    }
}
