//! Passes that the guest's own probes in programs make, each for one consumer.

use super::calls::absolute;
use super::{Assembler, Done, NoStub};
use crate::capture::Register;
use crate::detour::layout;
use crate::detour::work::Work;
use iced_x86::code_asm::CodeLabel;

impl Assembler<'_> {
    /// Goes to the label that is returned unless the first argument is the consumer of `work`. Uses rax.
    pub(super) fn begin_consumer(&mut self, work: &Work) -> Result<Option<CodeLabel>, NoStub> {
        let Some(number) = work.consumer else { return Ok(None) };
        let others = self.asm.create_label();
        let consumer = absolute(self.guest.window.add(layout::consumer(number)))?;
        let first = self.register(Register::Rdi)?;
        self.asm.cmp(first, consumer)?;
        self.asm.jne(others)?;
        Ok(Some(others))
    }

    /// Whoever went to `others` comes together with all.
    pub(super) fn end_consumer(&mut self, others: Option<CodeLabel>) -> Done {
        let Some(mut others) = others else { return Ok(()) };
        self.asm.set_label(&mut others)?;
        Ok(self.asm.zero_bytes()?)
    }
}

#[cfg(test)]
mod tests {
    use crate::addr::Gva;
    use crate::detour::layout::{HITS, consumer};
    use crate::detour::stub::Stub;
    use crate::detour::stub::tests::{AT, SITE, emulated, guest};
    use crate::detour::work::Work;
    use crate::insn::emulate::Segments;
    use crate::linux::testing::Ram;
    use crate::probe::plan::ProbePlan;
    use crate::regs::Regs;

    const CPU: Gva = Gva(Ram::BASE.0 + 0x1000);

    /// What a pass with this first argument counts.
    fn counted(rdi: u64) -> Vec<u64> {
        let (guest, ram) = (guest(), Ram::new());
        let work = Work::of(3, &ProbePlan::default()).unwrap().of_consumer(Some(7));
        let stub = Stub::assemble(&guest, AT, SITE, None, &[work]).unwrap();
        let regs = Regs { rip: AT.0, rsp: Ram::BASE.0 + 0x800, rdi, ..Regs::default() };
        let segments = Segments { gs_base: CPU.0 - guest.cpu.unwrap().task.current.offset, fs_base: 0 };
        emulated(&stub, &guest, &ram, &segments, regs, |_| panic!("it leaves the stub"))
    }

    #[test]
    fn only_the_passes_of_its_own_consumer_count() {
        let own: Gva = guest().window.add(consumer(7));
        assert_eq!(counted(own.0), [HITS]);
        for other in [0, own.0 + 64, own.0 - 64, own.0 & 0xffff_ffff] {
            assert!(counted(other).is_empty(), "{other:#x}");
        }
    }
}
