//! Names for the frames of processes, by the files of the guest's that are this machine's as well.
//!
//! Which files these are, the guest says: a process of its own reads them ([`server`]), and is asked over a stream ([`asker`]) by
//! whoever writes stacks, be that in the emulated host or not.

mod asker;
mod question;
mod server;

pub(crate) use asker::ProgramNames;
pub(crate) use server::{Names, answer};

use crate::record::{Address, UserFrame, UserPlace};
use probe_engine::addr::Gva;
use probe_engine::linux::program_file::NamedOffset;
use vmm::stack::UserStack;

/// The frames of `stack` with what is known of them. `names`: of the functions in files, where these are known.
pub(crate) fn named(stack: &UserStack, names: Option<&ProgramNames>) -> Vec<UserFrame> {
    let frame = |(n, at): (usize, &Gva)| {
        // It is told where the call returns to.
        let before = u64::from(n > 0);
        let place = stack.place(n).map(|(file, inside)| {
            let name = names.and_then(|names| names.part(file, inside)).and_then(|part| {
                let (name, offset) = (part.function.as_deref()?, inside - part.start + before);
                Some(NamedOffset { name, offset, size: part.size }.to_string())
            });
            let path = String::from_utf8_lossy(&file.path).into_owned();
            UserPlace { file: path, offset: Address(inside.saturating_add(before)), name }
        });
        UserFrame { address: Address(at.0), place }
    };
    stack.frames.iter().enumerate().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::mappings::Mapping;
    use probe_engine::linux::unwind::UserEnd;
    use std::net::Shutdown;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::thread;
    use vmm::stack::MappedFile;

    #[inline(never)]
    fn looked_for() -> u64 {
        std::hint::black_box(7)
    }

    /// Where this process has its own code, and of which file.
    fn own() -> MappedFile {
        let path = std::env::current_exe().unwrap().canonicalize().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = Gva(looked_for as *const () as u64);
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mapping = maps.lines().find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (start, end) = words.first()?.split_once('-')?;
            let (start, end) = (Gva(hex(start)), Gva(hex(end)));
            (start..end).contains(&at).then(|| (start, end, hex(words.get(2).unwrap())))
        });
        let (start, end, offset) = mapping.unwrap();
        let metadata = path.metadata().unwrap();
        let modified = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        let mapping = Mapping { start, end, offset, length: metadata.len(), modified };
        MappedFile { mapping, path: path.to_str().unwrap().as_bytes().to_vec() }
    }

    #[test]
    fn frames_have_the_names_of_their_functions() {
        assert_eq!(looked_for(), 7);
        let (file, at) = (own(), Gva(looked_for as *const () as u64));
        let frames = vec![at.add(1), at.add(1), at, Gva(8)];
        let stack = UserStack { frames, files: vec![file.clone()], end: UserEnd::Bottom };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut names = Names::below(Path::new("/"));
            answer(&mut names, theirs.try_clone().unwrap(), theirs).unwrap();
        });
        let end = ours.try_clone().unwrap();
        let names = ProgramNames::asking(ours.try_clone().unwrap(), ours).unwrap();
        let frames = named(&stack, Some(&names));
        let of = |n: usize| frames.get(n).unwrap().place.clone();
        let offset = |n: usize| {
            let name = of(n)?.name?;
            name.contains("looked_for")
                .then(|| name.split('+').next_back().unwrap().split('/').next().unwrap().to_owned())
        };
        assert_eq!((offset(0), offset(1)), (Some("0x1".to_owned()), Some("0x1".to_owned())));
        assert_eq!(offset(2), None, "what was called at its end is another function");
        assert_eq!(of(3), None);
        assert_eq!(of(0).unwrap().file.as_bytes(), &*file.path);
        assert!(named(&stack, None).first().unwrap().place.as_ref().unwrap().name.is_none());
        // A file that is not the same.
        let mapping = Mapping { modified: file.mapping.modified + 1, ..file.mapping };
        let other = UserStack { files: vec![MappedFile { mapping, ..file }], ..stack };
        assert!(named(&other, Some(&names)).first().unwrap().place.as_ref().unwrap().name.is_none());
        end.shutdown(Shutdown::Both).unwrap();
        server.join().unwrap();
    }
}
