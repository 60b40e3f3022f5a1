//! The stack at a hit: a line a frame, or JSON.

use probe_engine::addr::Gva;
use probe_engine::linux::lines::{LineTable, SourceLine};
use probe_engine::linux::names::Names;
use probe_engine::linux::unwind::{End, Frame, FrameKind, UserEnd};
use serde::Serialize;
use serde::ser::SerializeMap;
use std::fmt;
use vmm::stack::{Stack, UserStack};

/// A stack, and names for its addresses.
pub(crate) struct NamedStack<'a> {
    pub(crate) stack: &'a Stack,
    pub(crate) names: Names<'a>,
    /// From which lines of the source the kernel's text is, where that is known.
    pub(crate) lines: Option<&'a LineTable>,
}

impl<'a> NamedStack<'a> {
    /// The lines that a frame is from, that of the innermost inlined function first. Behind a call, those of the call.
    fn lines(&self, frame: &Frame) -> Vec<SourceLine<'a>> {
        let before = u64::from(frame.kind == FrameKind::Return);
        let link = Gva(frame.at.0.wrapping_sub(before).wrapping_sub(self.names.slide));
        self.lines.map(|lines| lines.at(link)).unwrap_or_default()
    }
}

impl fmt::Display for NamedStack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for frame in &self.stack.frames {
            if frame.kind == FrameKind::Interrupted {
                writeln!(f, "  <interrupt>")?;
            }
            let guess = if frame.is_reliable { "" } else { "? " };
            let lines = self.lines(frame);
            let (own, inlined) = lines.split_last().map_or((None, &[][..]), |(own, rest)| (Some(own), rest));
            for line in inlined {
                writeln!(f, "  {guess}{} (inlined) {line}", line.inlined.unwrap_or_default())?;
            }
            write!(f, "  {guess}{}", self.names.frame(frame))?;
            match own {
                Some(line) => writeln!(f, " {line}")?,
                None => writeln!(f)?,
            }
        }
        if let End::Cut(why) = self.stack.end {
            writeln!(f, "  ... and goes on: {why}")?;
        }
        let Some(user) = &self.stack.user else { return Ok(()) };
        for at in &user.frames {
            writeln!(f, "  user: {at}")?;
        }
        match user.end {
            UserEnd::Bottom => Ok(()),
            why => writeln!(f, "  user: ... and goes on: {why}"),
        }
    }
}

/// A frame as JSON.
#[derive(Serialize)]
struct FrameJson {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    source: Option<SourceJson>,
    #[serde(skip_serializing_if = "is_false")]
    interrupted: bool,
    #[serde(skip_serializing_if = "is_false")]
    guessed: bool,
    /// The functions that are inlined there, the innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlined: Vec<InlinedJson>,
}

/// A line of the source as JSON.
#[derive(Serialize)]
struct SourceJson {
    file: String,
    /// Absent where no line of the file is to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// An inlined function as JSON.
#[derive(Serialize)]
struct InlinedJson {
    name: String,
    #[serde(flatten)]
    source: SourceJson,
}

impl SourceJson {
    fn of(line: &SourceLine<'_>) -> Self {
        Self { file: line.file.to_owned(), line: Some(line.line).filter(|line| *line != 0) }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

impl FrameJson {
    fn of(frame: &Frame, stack: &NamedStack<'_>) -> Self {
        let name = stack.names.frame(frame);
        let lines = stack.lines(frame);
        let inlined = lines.iter().filter_map(|line| {
            Some(InlinedJson { name: line.inlined?.to_owned(), source: SourceJson::of(line) })
        });
        Self {
            address: frame.at.to_string(),
            name: name.function.map(|_| name.to_string()),
            source: lines.last().map(SourceJson::of),
            inlined: inlined.collect(),
            interrupted: frame.kind == FrameKind::Interrupted,
            guessed: !frame.is_reliable,
        }
    }
}

impl NamedStack<'_> {
    /// Writes it as entries of `map`.
    pub(super) fn serialize<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let stack = self.stack;
        let frames: Vec<_> = stack.frames.iter().map(|frame| FrameJson::of(frame, self)).collect();
        map.serialize_entry("stack", &frames)?;
        let end = match stack.end {
            End::Bottom => "bottom".to_owned(),
            End::User(_) => "user".to_owned(),
            End::Cut(why) => why.to_string(),
        };
        map.serialize_entry("stack_end", &end)?;
        let Some(UserStack { frames, end }) = &stack.user else { return Ok(()) };
        let frames: Vec<_> = frames.iter().map(ToString::to_string).collect();
        map.serialize_entry("user_stack", &frames)?;
        let end = match end {
            UserEnd::Bottom => "bottom".to_owned(),
            why => why.to_string(),
        };
        map.serialize_entry("user_stack_end", &end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::lines::LineTableBuilder;
    use probe_engine::linux::symbols::SymbolTableBuilder;
    use probe_engine::linux::unwind::{Cut, UserRegs};

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
        let user = UserStack { frames: vec![rip, rip.add(1)], end: UserEnd::NoUser(Gva(0x10)) };
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
            let stack = NamedStack { stack: &stack, names, lines: Some(&lines) };
            let frames: Vec<_> =
                stack.stack.frames.iter().map(|frame| FrameJson::of(frame, &stack)).collect();
            (stack.to_string(), serde_json::to_value(frames).unwrap())
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
        let text = |stack| with_names(|names| NamedStack { stack, names, lines: None }.to_string());
        let [whole, cut] = stacks();
        assert_eq!(
            text(&whole),
            "  tick+0x4/0x40\n  <interrupt>\n  do_read+0x10/0x40\n  ? 0xffffffff81004000\n\
             \x20 user: 0x7f0000001000\n  user: 0x7f0000001001\n\
             \x20 user: ... and goes on: 0x10 is no address of a process\n"
        );
        assert_eq!(text(&cut), "  tick+0x4/0x40\n  ... and goes on: more frames than asked for\n");
    }

    #[test]
    fn a_stack_is_members_of_its_hit() {
        struct Hit<'a>(NamedStack<'a>);
        impl Serialize for Hit<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                self.0.serialize(&mut map)?;
                map.end()
            }
        }
        let json = |stack| {
            with_names(|names| serde_json::to_value(Hit(NamedStack { stack, names, lines: None })).unwrap())
        };
        let [whole, cut] = stacks();
        let expected = serde_json::json!({
            "stack": [
                {"address": "0xffffffff81000044", "name": "tick+0x4/0x40"},
                {"address": "0xffffffff81000010", "name": "do_read+0x10/0x40", "interrupted": true},
                {"address": "0xffffffff81004000", "guessed": true},
            ],
            "stack_end": "user",
            "user_stack": ["0x7f0000001000", "0x7f0000001001"],
            "user_stack_end": "0x10 is no address of a process",
        });
        assert_eq!(json(&whole), expected);
        assert_eq!(json(&cut)["stack_end"], "more frames than asked for");
        assert!(json(&cut).get("user_stack").is_none());
    }
}
