//! The stack at a hit: a line a frame, or JSON.

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
}

impl fmt::Display for NamedStack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for frame in &self.stack.frames {
            if frame.kind == FrameKind::Interrupted {
                writeln!(f, "  <interrupt>")?;
            }
            let guess = if frame.is_reliable { "" } else { "? " };
            writeln!(f, "  {guess}{}", self.names.frame(frame))?;
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
    #[serde(skip_serializing_if = "is_false")]
    interrupted: bool,
    #[serde(skip_serializing_if = "is_false")]
    guessed: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl FrameJson {
    fn of(frame: &Frame, names: &Names<'_>) -> Self {
        let name = names.frame(frame);
        Self {
            address: frame.at.to_string(),
            name: name.function.map(|_| name.to_string()),
            interrupted: frame.kind == FrameKind::Interrupted,
            guessed: !frame.is_reliable,
        }
    }
}

impl NamedStack<'_> {
    /// Writes it as entries of `map`.
    pub(super) fn serialize<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Self { stack, names } = self;
        let frames: Vec<_> = stack.frames.iter().map(|frame| FrameJson::of(frame, names)).collect();
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
    use probe_engine::addr::Gva;
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

    fn with_names<T>(use_names: impl FnOnce(Names<'_>) -> T) -> T {
        let mut symbols = SymbolTableBuilder::default();
        for (offset, kind, name) in [(0, b'T', "do_read"), (0x40, b'T', "tick"), (0x80, b'D', "data")] {
            symbols.push(READ.add(offset), kind, name).unwrap();
        }
        use_names(Names { kernel: &symbols.finish(), slide: 0, modules: &[] })
    }

    #[test]
    fn a_stack_is_a_line_a_frame() {
        let text = |stack| with_names(|names| NamedStack { stack, names }.to_string());
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
        let json =
            |stack| with_names(|names| serde_json::to_value(Hit(NamedStack { stack, names })).unwrap());
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
