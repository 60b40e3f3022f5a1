//! The stack at a hit gets names.

use crate::program_names::{self, ProgramNames};
use crate::record::{self, Address, BOTTOM, Inlined, USER};
use probe_engine::addr::Gva;
use probe_engine::linux::lines::{LineTable, SourceLine};
use probe_engine::linux::names::Names;
use probe_engine::linux::unwind::{End, Frame, FrameKind, UserEnd};
use vmm::stack::Stack;

/// `stack` with the names of its frames. `lines`: from which lines of the source the kernel's text is, where that is known;
/// `programs`: of the frames of processes, where these are.
pub(super) fn named(
    stack: &Stack,
    names: Names<'_>,
    lines: Option<&LineTable>,
    programs: Option<&ProgramNames>,
) -> record::Stack {
    record::Stack {
        frames: stack.frames.iter().map(|frame| named_frame(frame, names, lines)).collect(),
        end: match stack.end {
            End::Bottom => BOTTOM.to_owned(),
            End::User(_) => USER.to_owned(),
            End::Cut(why) => why.to_string(),
        },
        user: stack.user.as_ref().map(|user| record::UserStack {
            frames: program_names::named(user, programs),
            end: match user.end {
                UserEnd::Bottom => BOTTOM.to_owned(),
                why => why.to_string(),
            },
        }),
    }
}

fn named_frame(frame: &Frame, names: Names<'_>, lines: Option<&LineTable>) -> record::Frame {
    let name = names.frame(frame);
    // Behind a call, the line is that of the call.
    let before = u64::from(frame.kind == FrameKind::Return);
    let link = Gva(frame.at.0.wrapping_sub(before).wrapping_sub(names.slide));
    let lines = lines.map(|lines| lines.at(link)).unwrap_or_default();
    let (own, inlined) = lines.split_last().map_or((None, &[][..]), |(own, rest)| (Some(own), rest));
    let inlined = inlined.iter().map(|line| Inlined {
        name: line.inlined.unwrap_or_default().to_owned(),
        file: line.file.to_owned(),
        line: number(line),
    });
    record::Frame {
        address: Address(frame.at.0),
        name: (name.function.is_some() || name.module.is_some()).then(|| name.to_string()),
        file: own.map(|line| line.file.to_owned()),
        line: own.and_then(number),
        interrupted: frame.kind == FrameKind::Interrupted,
        guessed: !frame.is_reliable,
        inlined: inlined.collect(),
    }
}

/// The line's number, unless none is to blame.
fn number(line: &SourceLine<'_>) -> Option<u32> {
    Some(line.line).filter(|line| *line != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::lines::LineTableBuilder;
    use probe_engine::linux::symbols::SymbolTableBuilder;
    use probe_engine::linux::unwind::{Cut, UserRegs};
    use vmm::stack::UserStack;

    const READ: Gva = Gva(0xffff_ffff_8100_0000);

    fn frame(offset: u64, kind: FrameKind, is_reliable: bool) -> Frame {
        Frame { at: READ.add(offset), kind, is_reliable }
    }

    /// In user mode, and cut short.
    fn stacks() -> [Stack; 2] {
        let frames = vec![
            frame(0x44, FrameKind::Start, true),
            frame(0x10, FrameKind::Interrupted, true),
            frame(0x4000, FrameKind::Return, false),
        ];
        let rip = Gva(0x7f00_0000_1000);
        let end = UserEnd::NoUser(Gva(0x10));
        let user = UserStack { frames: vec![rip, rip.add(1)], files: Vec::new(), end };
        let end = End::User(UserRegs { rip, rsp: rip, rbp: Gva(0x10) });
        let cut = Stack { frames: frames[..1].to_vec(), end: End::Cut(Cut::Full), user: None };
        [Stack { frames, end, user: Some(user) }, cut]
    }

    /// `do_read` calls `check`, which is inlined; `tick` is of another file, without a line.
    fn lines() -> LineTable {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let files = names(&["", "fs/read.c", "kernel/tick.c"]);
        let mut lines = LineTableBuilder::new(READ, &files, &names(&["", "check"]));
        lines.call(0, 0, 0, 0);
        lines.call(0, 1, 1, 20);
        lines.push(0, 1, 3, 1);
        lines.push(0x11, 1, 21, 0);
        lines.push(0x40, 2, 0, 0);
        lines.push(0x80, 0, 0, 0);
        lines.finish()
    }

    #[test]
    fn frames_have_lines_and_the_functions_that_are_inlined() {
        let lines = lines();
        let [mut stack, _] = stacks();
        // A call that ends at 0x11 belongs to what is before that.
        stack.frames.push(frame(0x11, FrameKind::Return, true));
        stack.user = None;
        let (text, json) = with_names(|names| {
            let stack = named(&stack, names, Some(&lines), None);
            (stack.to_string(), serde_json::to_value(&stack.frames).unwrap())
        });
        assert_eq!(
            text,
            "  tick+0x4/0x40 kernel/tick.c:?\n  <interrupt>\n  check (inlined) fs/read.c:3\n\
             \x20 do_read+0x10/0x40 fs/read.c:20\n  ? 0xffffffff81004000\n\
             \x20 check (inlined) fs/read.c:3\n  do_read+0x11/0x40 fs/read.c:20\n"
        );
        let inlined = serde_json::json!([{"name": "check", "file": "fs/read.c", "line": 3}]);
        assert_eq!(json[0]["file"], "kernel/tick.c");
        assert!(json[0].get("line").is_none() && json[0].get("inlined").is_none());
        assert_eq!((&json[1]["line"], &json[1]["inlined"]), (&serde_json::json!(20), &inlined));
        assert!(json[2].get("file").is_none());
    }

    fn with_names<T>(use_names: impl FnOnce(Names<'_>) -> T) -> T {
        let mut symbols = SymbolTableBuilder::default();
        for (offset, kind, name) in [(0, b'T', "do_read"), (0x40, b'T', "tick"), (0x80, b'D', "data")] {
            symbols.push(READ.add(offset), kind, name).unwrap();
        }
        use_names(Names { kernel: &symbols.finish(), slide: 0, modules: &[] })
    }

    #[test]
    fn a_stack_is_a_line_a_frame() {
        let text = |stack| with_names(|names| named(stack, names, None, None).to_string());
        let [whole, cut] = stacks();
        assert_eq!(
            text(&whole),
            "  tick+0x4/0x40\n  <interrupt>\n  do_read+0x10/0x40\n  ? 0xffffffff81004000\n\
             \x20 user: 0x7f0000001000\n  user: 0x7f0000001001\n\
             \x20 user: ... and goes on: 0x10 is no address of a process\n"
        );
        assert_eq!(text(&cut), "  tick+0x4/0x40\n  ... and goes on: more frames than asked for\n");
    }
}
