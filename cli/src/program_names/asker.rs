//! Asks for names, and keeps what was answered.

use super::question::{Answer, FileIdentity, LONGEST, NamedPart, Question};
use crate::say::note;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;
use vmm::stack::MappedFile;

/// So long is waited for an answer: the guest chooses which files are read for it. Later there are no names.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many parts of files are kept.
const MOST: usize = 64 << 10;
/// And so many bytes of their names.
const MOST_BYTES: usize = 32 << 20;

/// Names for places in the files that processes run.
pub(crate) struct ProgramNames(RefCell<Asker>);

struct Asker {
    questions: Box<dyn Write>,
    /// They come in by a thread of their own.
    answers: Receiver<String>,
    /// Whether nobody is asked any more.
    is_over: bool,
    known: Known,
}

/// What was answered.
#[derive(Default)]
struct Known {
    /// Files, each with its parts by where they begin; `None` where it has no names.
    files: HashMap<FileIdentity, Option<BTreeMap<u64, NamedPart>>>,
    parts: usize,
    bytes: usize,
}

impl ProgramNames {
    /// By what comes in as `answers` to `questions`.
    ///
    /// # Errors
    /// When this machine has no thread left.
    pub(crate) fn asking(
        questions: impl Write + 'static,
        answers: impl Read + Send + 'static,
    ) -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let mut answers = BufReader::new(answers);
        // It ends with the process where nobody answers, or with the first answer that nobody waits for.
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            loop {
                let mut line = String::new();
                match answers.by_ref().take(LONGEST).read_line(&mut line) {
                    Ok(1..) if tell.send(line).is_ok() => {}
                    _ => return,
                }
            }
        })?;
        let asker =
            Asker { questions: Box::new(questions), answers: told, is_over: false, known: Known::default() };
        Ok(Self(RefCell::new(asker)))
    }

    /// The part of a file that has what is at an offset in it, if that is known.
    pub(super) fn part(&self, file: &MappedFile, offset: u64) -> Option<NamedPart> {
        self.0.borrow_mut().part(file, offset)
    }
}

impl Asker {
    fn part(&mut self, MappedFile { mapping, path }: &MappedFile, offset: u64) -> Option<NamedPart> {
        let path = std::str::from_utf8(path).ok()?.to_owned();
        let file = FileIdentity { path, length: mapping.length, modified: mapping.modified };
        if let Some(known) = self.known.part(&file, offset) {
            return known;
        }
        if self.is_over {
            return None;
        }
        let question = Question { file, offset };
        let Some(answer) = self.ask(&question) else {
            self.is_over = true;
            note("functions of processes have no names from here on: nobody says what their files have");
            return None;
        };
        match answer {
            Answer::NoFile => {
                self.known.files.insert(question.file, None);
                None
            }
            Answer::Part(part) if part.has(offset) => {
                self.known.add(question.file, part.clone());
                Some(part)
            }
            Answer::Part(_) => None,
        }
    }

    fn ask(&mut self, question: &Question) -> Option<Answer> {
        let mut line = serde_json::to_string(question).ok()?;
        line.push('\n');
        self.questions.write_all(line.as_bytes()).ok()?;
        let answer = self.answers.recv_timeout(PATIENCE).ok()?;
        serde_json::from_str(&answer).ok()
    }
}

impl Known {
    /// The part of the file, if it is known, or that it has none.
    fn part(&self, file: &FileIdentity, offset: u64) -> Option<Option<NamedPart>> {
        let Some(parts) = self.files.get(file)? else { return Some(None) };
        let (_, before) = parts.range(..=offset).next_back()?;
        before.has(offset).then(|| Some(before.clone()))
    }

    fn add(&mut self, file: FileIdentity, part: NamedPart) {
        if self.parts >= MOST || self.files.len() >= MOST || self.bytes >= MOST_BYTES {
            *self = Self::default();
        }
        self.parts += 1;
        self.bytes += part.function.as_ref().map_or(0, String::len);
        if let Some(parts) = self.files.entry(file).or_insert_with(|| Some(BTreeMap::new())) {
            parts.insert(part.start, part);
        }
    }
}

impl NamedPart {
    fn has(&self, offset: u64) -> bool {
        offset.checked_sub(self.start).is_some_and(|inside| inside < self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::linux::mappings::Mapping;

    fn file() -> MappedFile {
        let mapping = Mapping { start: Gva(0), end: Gva(0x1000), offset: 0, length: 9, modified: 7 };
        MappedFile { mapping, path: b"/bin/ls".to_vec() }
    }

    /// What is answered about these offsets, where these lines are all that comes.
    fn told(answers: &str, offsets: &[u64]) -> Vec<Option<String>> {
        let names = ProgramNames::asking(io::sink(), io::Cursor::new(answers.to_owned())).unwrap();
        offsets.iter().map(|offset| names.part(&file(), *offset)?.function).collect()
    }

    #[test]
    fn what_is_known_is_not_asked_again() {
        let write = r#"{"Part":{"function":"write","start":16,"size":32}}"#;
        let gap = r#"{"Part":{"function":null,"start":0,"size":16}}"#;
        let own = || Some("write".to_owned());
        assert_eq!(told(&format!("{write}\n"), &[20, 16, 47, 48]), [own(), own(), own(), None]);
        assert_eq!(told(&format!("\"NoFile\"\n{write}\n"), &[20, 16]), [None, None]);
        assert_eq!(told(&format!("{gap}\n{write}\n"), &[8, 9, 0, 20]), [None, None, None, own()]);
    }

    #[test]
    fn nobody_is_asked_who_does_not_answer() {
        let elsewhere = "{\"Part\":{\"function\":\"a\",\"start\":99,\"size\":1}}\n";
        for answers in ["", "\n", "nonsense\n", elsewhere] {
            assert_eq!(told(answers, &[20, 21]), [None, None], "{answers}");
        }
    }
}
