//! Reads the files that processes of the guest run, and says which functions they have.

use super::question::{Answer, LONGEST, NamedFunction, Question};
use crate::program_files::ProgramFiles;
use probe_engine::linux::program_file::{FunctionTable, NamedOffset};
use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::path::Path;

/// No file is larger that is read for names, in bytes.
const LARGEST: u64 = 256 << 20;
/// Nor are all together: which ones they are, the guest says.
const MOST: u64 = 2 << 30;
/// So many files are known, or known not to be.
const MOST_FILES: usize = 4096;

/// The functions of the files that processes run.
pub(crate) struct Names {
    files: ProgramFiles,
    known: HashMap<FileIdentity, Option<FunctionTable>>,
    /// So many bytes may still be read.
    left: u64,
}

/// A file's path, its length, and when it was changed last.
type FileIdentity = (String, u64, i64);

impl Names {
    /// By the files below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        Self { files: ProgramFiles::below(root), known: HashMap::new(), left: MOST }
    }

    fn answer(&mut self, question: &Question<'_>) -> Answer {
        let Question { path, length, modified, offset } = *question;
        let identity = (path.to_owned(), length, modified);
        if !self.known.contains_key(&identity) {
            if self.known.len() >= MOST_FILES || length > self.left {
                return Answer::NoFile;
            }
            let table = self.files.functions(path, (length, modified), LARGEST);
            self.left -= if table.is_some() { length } else { 0 };
            self.known.insert(identity.clone(), table);
        }
        let Some(Some(table)) = self.known.get(&identity) else { return Answer::NoFile };
        match table.at(offset) {
            Some(NamedOffset { name, offset: inside, size }) => {
                Answer::Function(NamedFunction { name: name.to_owned(), start: offset - inside, size })
            }
            None => Answer::NoFunction,
        }
    }
}

/// Answers what comes in, until nothing comes any more.
///
/// # Errors
/// When an answer cannot be written, or a question is none.
pub(crate) fn answer(names: &mut Names, questions: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut questions = BufReader::new(questions);
    let mut line = String::new();
    loop {
        line.clear();
        if questions.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let question: Question<'_> = serde_json::from_str(&line)?;
        let mut answer = serde_json::to_vec(&names.answer(&question))?;
        answer.push(b'\n');
        answers.write_all(&answer)?;
    }
}
