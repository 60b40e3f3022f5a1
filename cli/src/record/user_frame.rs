//! A frame of a process: where it is, and in which file.

use super::Address;
use super::bounded::{name, some_name};
use crate::demangled::demangled_function;
use probe_engine::guest_text::Escaped;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A frame of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserFrame {
    pub(crate) address: Address,
    /// Which part of which file is there, if that is known.
    pub(crate) place: Option<UserPlace>,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserPlace {
    /// The path that the file has in the guest.
    #[serde(deserialize_with = "name")]
    pub(crate) file: String,
    /// So many bytes from its start.
    pub(crate) offset: Address,
    /// The function there, as the file names it: `function+offset/length`.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

impl UserFrame {
    /// Frames at these addresses, whose places are those of the same number.
    pub(super) fn all(addresses: &[Address], places: Option<Vec<Option<UserPlace>>>) -> Vec<Self> {
        let mut places = places.unwrap_or_default().into_iter();
        addresses.iter().map(|at| Self { address: *at, place: places.next().flatten() }).collect()
    }

    /// The places of all `frames`; `None` where none is known.
    pub(super) fn places(frames: &[Self]) -> Option<Vec<Option<UserPlace>>> {
        let places = frames.iter().map(|frame| frame.place.clone());
        frames.iter().any(|frame| frame.place.is_some()).then(|| places.collect())
    }

    /// The function as its source has it, or else the file that it is in; an address where nothing is known.
    pub(crate) fn function(&self) -> String {
        let Some(UserPlace { file, name, .. }) = &self.place else { return self.address.to_string() };
        match name.as_deref().and_then(|name| name.rsplit_once('+')) {
            Some((name, _)) => demangled_function(name).unwrap_or_else(|| name.to_owned()),
            None => format!("[{}]", file.rsplit('/').next().unwrap_or_default()),
        }
    }
}

impl fmt::Display for UserFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(UserPlace { file, offset, name }) = &self.place else {
            return write!(f, "{}", self.address);
        };
        let file = Escaped(file.as_bytes());
        match name.as_deref().and_then(|name| name.rsplit_once('+')) {
            Some((_, place)) => {
                write!(f, "{}+{} ({file})", Escaped(self.function().as_bytes()), Escaped(place.as_bytes()))
            }
            None => write!(f, "{} ({file}+{offset})", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: Option<&str>) -> UserFrame {
        let place = UserPlace {
            file: "/bin/l\x1bs".to_owned(),
            offset: Address(0x11),
            name: name.map(str::to_owned),
        };
        UserFrame { address: Address(0x7f00_0000_1000), place: Some(place) }
    }

    #[test]
    fn a_frame_is_told_by_what_is_known_of_it() {
        let texts = |frame: UserFrame| (frame.to_string(), frame.function());
        let own = |shown: &str, function: &str| (shown.to_owned(), function.to_owned());
        assert_eq!(texts(frame(Some("write+0x1/0x2"))), own("write+0x1/0x2 (/bin/l\\x1bs)", "write"));
        assert_eq!(
            texts(frame(Some("_ZN3foo3barEi+0x1/0x2"))),
            own("foo::bar+0x1/0x2 (/bin/l\\x1bs)", "foo::bar")
        );
        let unnamed = texts(frame(None));
        assert_eq!(unnamed.0, "0x7f0000001000 (/bin/l\\x1bs+0x11)");
        let unknown = UserFrame { place: None, ..frame(None) };
        assert_eq!(texts(unknown), own("0x7f0000001000", "0x7f0000001000"));
    }

    #[test]
    fn places_are_those_of_their_frames() {
        let frames = vec![UserFrame { place: None, ..frame(None) }, frame(Some("a+0x0/0x1"))];
        let addresses: Vec<_> = frames.iter().map(|frame| frame.address).collect();
        assert_eq!(UserFrame::all(&addresses, UserFrame::places(&frames)), frames);
        assert_eq!(UserFrame::places(frames.get(..1).unwrap()), None);
    }
}
