//! How a kernel returns and jumps indirectly: its mitigations against speculation have it go through thunks.
//!
//! A kernel is linked with a jump to `__x86_return_thunk` in the place of each return, and writes another instruction there
//! while it boots (`apply_returns` in arch/x86/kernel/alternative.c): a return where the CPU needs no more, or a jump to the
//! thunk that it has chosen (`x86_return_thunk`, where there is a choice). It does the same to the body of
//! `__x86_indirect_thunk_rax`: `jmp rax`, or a fence before that, or a retpoline. What stands there then is what our code
//! does as well. Nothing else is asked: neither the kernel's version, nor its variables, nor the CPU.
//!
//! Against ITS only branches whose last byte is in the [lower half](is_lower_half) of a cache line go through thunks
//! (`cpu_wants_rethunk_at`). So a return is looked at that is there, and ours are in upper halves.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::FlowControl;
use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::left_alone::Why;
use super::read::u32_at;
use super::thunks::code;
use crate::addr::Gva;
use crate::insn::copy::{JMP_REL32, JUMP};
use crate::insn::decode::decode;

/// `ret`, and `jmp rax`.
const RET: u8 = 0xc3;
const JMP_RAX: [u8; 2] = [0xff, 0xe0];
/// Bytes of the longest instruction.
pub const LONGEST: usize = 15;
/// More instructions than all thunks together have: the longest (`call_depth_return_thunk`) has some forty.
const LIMIT: usize = 256;

/// Where a kernel shows how it branches, at link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BranchSites {
    /// The kernel's text.
    text: Range<Gva>,
    /// A return like all others. `None` where the kernel is linked with returns and changes none.
    ret: Option<Gva>,
    /// `__x86_indirect_thunk_rax`.
    thunk: Option<Gva>,
}

/// How a running kernel branches (GVA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Branches {
    /// Where it jumps to instead of returning.
    pub ret: Option<Gva>,
    /// Where it jumps to instead of jumping to where rax says.
    pub jump: Option<Gva>,
}

impl Branches {
    /// Where the instructions begin that a CPU may run between a branch of ours and where the branch leads: those of the
    /// thunks, as `read` finds the running text, and of what they jump to or call.
    ///
    /// # Errors
    /// [`UnknownReturn::Unread`], and [`UnknownReturn::Long`] where the code goes on beyond what any thunk has.
    pub fn instructions(
        &self,
        read: impl Fn(Gva) -> Option<[u8; LONGEST]>,
    ) -> Result<BTreeSet<Gva>, UnknownReturn> {
        let mut found = BTreeSet::new();
        let mut open: Vec<Gva> = [self.ret, self.jump].into_iter().flatten().collect();
        while let Some(at) = open.pop() {
            if found.contains(&at) {
                continue;
            }
            if found.len() == LIMIT {
                return Err(UnknownReturn::Long(at));
            }
            let bytes = read(at).ok_or(UnknownReturn::Unread(at))?;
            let instruction = decode(&bytes, at).ok_or(UnknownReturn::Unread(at))?;
            found.insert(at);
            let (next, target) = (Gva(instruction.next_ip()), Gva(instruction.near_branch_target()));
            match instruction.flow_control() {
                FlowControl::Next => open.push(next),
                FlowControl::UnconditionalBranch => open.push(target),
                FlowControl::ConditionalBranch | FlowControl::Call => open.extend([next, target]),
                // Returns, jumps to where a register says, and ends such as `int3` and `ud2`.
                _ => {}
            }
        }
        Ok(found)
    }
}

/// It is not known how the guest returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnknownReturn {
    /// Neither a return nor a jump to a thunk.
    #[error("the guest has made of its return at {0} what is neither a return nor a jump")]
    Other(Gva),
    /// A jump to where no thunk of the kernel's can be.
    #[error("the guest has made of its return at {0} a jump out of its kernel's text, to {1}")]
    Outside(Gva, Gva),
    /// The text is not there.
    #[error("the text at {0}, by which the guest says how it returns, cannot be read")]
    Unread(Gva),
    /// Thunks go on for so long that they are none.
    #[error("what the guest returns or jumps by goes on at {0}, and is no thunk")]
    Long(Gva),
}

impl BranchSites {
    /// Those of `kernel`.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let thunk = kernel.symbol("__x86_indirect_thunk_rax").filter(|at| kernel.image().is_text(*at));
        Self { text: code(kernel.image()), ret: usual_return(kernel), thunk }
    }

    /// How the kernel branches that runs `slide` bytes behind where it was linked, by its text as `read` finds it. Its
    /// alternatives are applied.
    ///
    /// # Errors
    /// [`UnknownReturn`].
    pub fn branches(
        &self,
        slide: u64,
        read: impl Fn(Gva) -> Option<[u8; JUMP]>,
    ) -> Result<Branches, UnknownReturn> {
        let text = |link: Gva| read(link.add(slide)).ok_or(UnknownReturn::Unread(link.add(slide)));
        let ret = self.ret.map(|link| Ok((link.add(slide), text(link)?))).transpose()?;
        let ret = match ret {
            None | Some((_, [RET, ..])) => None,
            Some((at, [JMP_REL32, distance @ ..])) => {
                let to = at.add(JUMP as u64).offset(i32::from_le_bytes(distance).into());
                let is_inside = Gva(to.0.wrapping_sub(slide)).is_in(&self.text);
                Some(is_inside.then_some(to).ok_or(UnknownReturn::Outside(at, to))?)
            }
            Some((at, _)) => return Err(UnknownReturn::Other(at)),
        };
        let body = self.thunk.map(|link| Ok((link, text(link)?))).transpose()?;
        let jump = body.filter(|(_, body)| !body.starts_with(&JMP_RAX)).map(|(link, _)| link.add(slide));
        Ok(Branches { ret, jump })
    }
}

/// Whether a byte is in the lower half of a cache line.
#[must_use]
pub fn is_lower_half(at: Gva) -> bool {
    const HALF: u64 = 32;
    at.0 & HALF == 0
}

/// A return (`.return_sites`, s32 each) that the kernel does to what it does to all: it is linked as a jump to the thunk,
/// stays after boot, and is in no other table.
fn usual_return(kernel: &Kernel) -> Option<Gva> {
    let (image, patched) = (kernel.image(), kernel.patched());
    let thunk = kernel.symbol("__x86_return_thunk")?;
    let table = image.section(".return_sites")?;
    let entries = (0..table.bytes.len()).step_by(4);
    let mut sites = entries.filter_map(|at| {
        let distance = u32_at(table.bytes, at)? as i32;
        Some(table.range.start.add(at as u64).offset(distance.into()))
    });
    sites.find(|at| {
        let leads_there = || match image.bytes_at(*at, JUMP) {
            Some([JMP_REL32, distance @ ..]) => {
                u32_at(distance, 0).map(|distance| at.add(JUMP as u64).offset((distance as i32).into()))
            }
            _ => None,
        };
        let ours = *at..at.add(JUMP as u64);
        is_lower_half(*at)
            && is_lower_half(at.add(JUMP as u64 - 1))
            && image.is_text(*at)
            && !image.is_init_text(*at)
            && patched.first(&ours, |why| why != Why::Return).is_none()
            && leads_there() == Some(thunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    const SLIDE: u64 = 0x1220_0000;
    const SITE: Gva = Gva(TEXT.0 + 0x100);
    const THUNK: Gva = Gva(TEXT.0 + 0x800);

    const RETPOLINE: [u8; 5] = [0xe8, 1, 0, 0, 0];
    const FENCED: [u8; 5] = [0x0f, 0xae, 0xe8, 0xff, 0xe0];
    const PLAIN: [u8; 5] = [0xff, 0xe0, 0xcc, 0xcc, 0xcc];
    const RETURN: [u8; 5] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];

    fn sites() -> BranchSites {
        BranchSites { text: TEXT..TEXT.add(0x1000), ret: Some(SITE), thunk: Some(THUNK) }
    }

    /// What is found in a guest with these bytes at the two places.
    fn found(ret: [u8; 5], thunk: [u8; 5]) -> Result<Branches, UnknownReturn> {
        sites().branches(SLIDE, |at| match at {
            _ if at == SITE.add(SLIDE) => Some(ret),
            _ if at == THUNK.add(SLIDE) => Some(thunk),
            _ => None,
        })
    }

    /// A jump from the site over so many bytes.
    fn jump(distance: i32) -> [u8; 5] {
        let [a, b, c, d] = distance.to_le_bytes();
        [0xe9, a, b, c, d]
    }

    #[test]
    fn what_the_kernel_has_written_is_what_it_does() {
        let through = |distance: i64| Some(SITE.add(SLIDE).offset(5 + distance));
        let thunk = Some(THUNK.add(SLIDE));
        let cases = [
            (RETURN, PLAIN, None, None),
            (RETURN, RETPOLINE, None, thunk),
            (RETURN, FENCED, None, thunk),
            (jump(0x400), PLAIN, through(0x400), None),
            (jump(-0x105), RETPOLINE, through(-0x105), thunk),
        ];
        for (site, body, ret, jump) in cases {
            assert_eq!(found(site, body), Ok(Branches { ret, jump }), "{site:02x?} {body:02x?}");
        }
    }

    #[test]
    fn a_kernel_that_changes_no_returns_has_no_thunks() {
        let none = BranchSites { ret: None, thunk: None, ..sites() };
        assert_eq!(none.branches(SLIDE, |_| None), Ok(Branches::default()));
    }

    /// The code of a thunk at [`THUNK`], as `branches` of it goes through.
    fn gone_through(thunk: &[u8]) -> Result<Vec<u64>, UnknownReturn> {
        let branches = Branches { ret: Some(THUNK), jump: None };
        let read = |at: Gva| {
            let from = usize::try_from(at.0.checked_sub(THUNK.0)?).ok()?;
            let mut bytes = [0xcc; LONGEST];
            let rest = thunk.get(from..)?;
            let len = rest.len().min(LONGEST);
            bytes[..len].copy_from_slice(&rest[..len]);
            Some(bytes)
        };
        let all = branches.instructions(read)?;
        Ok(all.into_iter().map(|at| at.0 - THUNK.0).collect())
    }

    #[test]
    fn a_thunk_is_what_its_branches_lead_to_and_nothing_beside() {
        // `ret`, and what lies behind belongs to another.
        assert_eq!(gone_through(&[0xc3, 0xcc, 0x90, 0x90]), Ok(vec![0]));
        // A retpoline: call 1f; 2: pause; lfence; jmp 2b; 1: mov [rsp], rax; ret.
        let retpoline =
            [0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3, 0x90];
        assert_eq!(gone_through(&retpoline), Ok(vec![0, 5, 7, 10, 12, 16]));
        // A jump over others to a return (`srso_return_thunk`: call safe_ret; ud2).
        let far = [0xe8, 4, 0, 0, 0, 0x0f, 0x0b, 0x90, 0x90, 0x48, 0x8d, 0x64, 0x24, 8, 0xc3];
        assert_eq!(gone_through(&far), Ok(vec![0, 5, 9, 14]));
        let none = Branches::default().instructions(|_| None);
        assert_eq!(none, Ok(BTreeSet::new()));
    }

    #[test]
    fn a_thunk_that_leads_astray_is_none() {
        let outside = [0xe9, 0, 0, 1, 0];
        assert_eq!(gone_through(&outside), Err(UnknownReturn::Unread(THUNK.add(0x1_0005))));
        assert_eq!(gone_through(&[0x06; 16]), Err(UnknownReturn::Unread(THUNK)));
        assert_eq!(gone_through(&[0x90; 1000]), Err(UnknownReturn::Long(THUNK.add(256))));
        // A jump to itself ends.
        assert_eq!(gone_through(&[0xeb, 0xfe]), Ok(vec![0]));
    }

    #[test]
    fn what_no_kernel_writes_is_not_followed() {
        let at = SITE.add(SLIDE);
        let outside = |distance: i32| UnknownReturn::Outside(at, at.offset(5 + i64::from(distance)));
        for distance in [-0x106, 0x1000, i32::MAX, i32::MIN] {
            assert_eq!(found(jump(distance), PLAIN), Err(outside(distance)), "{distance:#x}");
        }
        for bytes in [[0xcc; 5], [0; 5], [0x0f, 0x0b, 0, 0, 0], [0xeb, 0, 0, 0, 0], [0xc2, 8, 0, 0, 0]] {
            assert_eq!(found(bytes, PLAIN), Err(UnknownReturn::Other(at)), "{bytes:02x?}");
        }
        assert_eq!(sites().branches(SLIDE, |_| None), Err(UnknownReturn::Unread(at)));
        let message = outside(0x2000_0000).to_string();
        let expected = "the guest has made of its return at 0xffffffff93200100 a jump out of its kernel's text, to \
                        0xffffffffb3200105";
        assert_eq!(message, expected);
    }
}
