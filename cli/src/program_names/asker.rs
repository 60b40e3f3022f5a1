//! Asks for names, and keeps what was answered.

use super::question::{Answer, LONGEST, NamedFunction, Question};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use vmm::stack::MappedFile;

/// So many functions are kept.
const MOST: usize = 64 << 10;

/// Names for places in the files that processes run.
pub(crate) struct ProgramNames(RefCell<Asker>);

struct Asker {
    questions: Box<dyn Write>,
    answers: BufReader<Box<dyn Read>>,
    /// Whether nobody answers any more.
    is_over: bool,
    known: HashMap<FileIdentity, KnownFile>,
    /// How many functions are known.
    functions: usize,
}

/// A file's path, its length, and when it was changed last.
type FileIdentity = (Vec<u8>, u64, i64);

/// What is known of a file.
enum KnownFile {
    /// It has no names.
    Nothing,
    /// Functions, by where they begin.
    Functions(BTreeMap<u64, NamedFunction>),
}

impl ProgramNames {
    /// By what comes in as `answers` to `questions`.
    pub(crate) fn asking(questions: impl Write + 'static, answers: impl Read + 'static) -> Self {
        Self(RefCell::new(Asker {
            questions: Box::new(questions),
            answers: BufReader::new(Box::new(answers)),
            is_over: false,
            known: HashMap::new(),
            functions: 0,
        }))
    }

    /// The function that has what is at an offset in a file, if that is known.
    pub(super) fn at(&self, file: &MappedFile, offset: u64) -> Option<NamedFunction> {
        self.0.borrow_mut().at(file, offset)
    }
}

impl Asker {
    fn at(&mut self, MappedFile { mapping, path }: &MappedFile, offset: u64) -> Option<NamedFunction> {
        let identity = (path.clone(), mapping.length, mapping.modified);
        match self.known.get(&identity) {
            Some(KnownFile::Nothing) => return None,
            Some(KnownFile::Functions(functions)) => {
                let before = functions.range(..=offset).next_back();
                if let Some((start, function)) = before
                    && offset - start < function.size
                {
                    return Some(function.clone());
                }
            }
            None => {}
        }
        if self.is_over {
            return None;
        }
        let path = std::str::from_utf8(path).ok()?;
        let question = Question { path, length: mapping.length, modified: mapping.modified, offset };
        let Ok(answer) = self.ask(&question) else {
            self.is_over = true;
            return None;
        };
        if self.functions >= MOST || self.known.len() >= MOST {
            self.known.clear();
            self.functions = 0;
        }
        match answer {
            Answer::NoFile => {
                self.known.insert(identity, KnownFile::Nothing);
                None
            }
            Answer::NoFunction => None,
            Answer::Function(function) if function.start <= offset => {
                let known =
                    self.known.entry(identity).or_insert_with(|| KnownFile::Functions(BTreeMap::new()));
                if let KnownFile::Functions(functions) = known {
                    functions.insert(function.start, function.clone());
                    self.functions += 1;
                }
                Some(function)
            }
            Answer::Function(_) => None,
        }
    }

    fn ask(&mut self, question: &Question<'_>) -> io::Result<Answer> {
        let mut line = serde_json::to_string(question)?;
        line.push('\n');
        self.questions.write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.answers.by_ref().take(LONGEST).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
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
    fn told(answers: &'static str, offsets: &[u64]) -> Vec<Option<String>> {
        let names = ProgramNames::asking(io::sink(), answers.as_bytes());
        offsets.iter().map(|offset| Some(names.at(&file(), *offset)?.name)).collect()
    }

    #[test]
    fn what_is_known_is_not_asked_again() {
        let write = "{\"Function\":{\"name\":\"write\",\"start\":16,\"size\":32}}\n";
        let own = || Some("write".to_owned());
        assert_eq!(told(write, &[20, 16, 47, 48]), [own(), own(), own(), None]);
        assert_eq!(told("\"NoFile\"\n", &[20, 16]), [None, None]);
        let between = Box::leak(format!("\"NoFunction\"\n{write}").into_boxed_str());
        assert_eq!(told(between, &[8, 20]), [None, own()]);
    }

    #[test]
    fn nobody_is_asked_who_does_not_answer() {
        for answers in ["", "\n", "nonsense\n", "{\"Function\":{\"name\":\"a\",\"start\":99,\"size\":1}}\n"] {
            assert_eq!(told(answers, &[20, 21]), [None, None], "{answers}");
        }
    }
}
