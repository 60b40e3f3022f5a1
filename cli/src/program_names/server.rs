//! Reads the files that processes of the guest run, and says which functions they have.

use super::question::{Answer, FileIdentity, LONGEST, NamedPart, Question};
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

impl Names {
    /// By the files below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        Self { files: ProgramFiles::below(root), known: HashMap::new(), left: MOST }
    }

    fn answer(&mut self, Question { file, offset }: Question) -> Answer {
        if !self.known.contains_key(&file) {
            if self.known.len() >= MOST_FILES || file.length > self.left {
                return Answer::NoFile;
            }
            self.left -= file.length;
            let table = self.files.functions(&file.path, (file.length, file.modified), LARGEST);
            self.known.insert(file.clone(), table);
        }
        let Some(Some(table)) = self.known.get(&file) else { return Answer::NoFile };
        Answer::Part(match table.at(offset) {
            Some(NamedOffset { name, offset: inside, size }) => {
                NamedPart { function: Some(name.to_owned()), start: offset - inside, size }
            }
            None => {
                let gap = table.gap(offset);
                NamedPart { function: None, start: gap.start, size: gap.end - gap.start }
            }
        })
    }
}

/// Answers what comes in, until nothing comes any more. What is no question has no answer but that.
///
/// # Errors
/// When an answer cannot be written, or nothing can be read.
pub(crate) fn answer(names: &mut Names, questions: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut questions = BufReader::new(questions);
    let mut line = String::new();
    loop {
        line.clear();
        if questions.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = serde_json::from_str(&line).map_or(Answer::NoFile, |question| names.answer(question));
        let mut answer = serde_json::to_vec(&answer)?;
        answer.push(b'\n');
        answers.write_all(&answer)?;
    }
}
