//! The kernels of a list, from good to bad.

use crate::cases::TestedKernel;
use crate::file;
use crate::kernel_choice::Choice;
use anyhow::{Context, Result, anyhow, bail};
use std::path::Path;

/// Those of a list with commas, or of `@FILE`, which has one a line; an empty line and one with `#` says nothing.
pub(crate) fn read(list: &str) -> Result<Vec<TestedKernel>> {
    let words: Vec<String> = match list.strip_prefix('@') {
        Some(path) => {
            let text = String::from_utf8(file::read(Path::new(path))?)
                .with_context(|| format!("{path} is no text in UTF-8"))?;
            let lines = text.lines().map(str::trim);
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
        }
        None => list.split(',').map(|word| word.trim().to_owned()).collect(),
    };
    if words.len() < 2 {
        bail!("--kernels needs two kernels or more, from good to bad, with commas between them");
    }
    let mut kernels = Vec::<TestedKernel>::new();
    for word in words {
        if kernels.iter().any(|known| known.word == word) {
            bail!("--kernels has {word} twice");
        }
        let choice = Choice::parse(word.clone().into()).map_err(|error| anyhow!("--kernels: {error}"))?;
        if let Choice::At(path) = &choice {
            // One that a fetch brings is not there yet; a file is.
            if !path.try_exists().is_ok_and(|is_there| is_there) {
                bail!(
                    "--kernels: there is no {word}; a kernel is a file, the folder of a build, debian:6.12 or host"
                );
            }
        }
        kernels.push(TestedKernel::said(&choice)?);
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_list_is_said_or_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (image, list) = (folder.path().join("bzImage"), folder.path().join("list"));
        fs::write(&image, "").unwrap();
        let image = image.to_str().unwrap();
        fs::write(&list, format!("# oldest first\ndebian:6.1\n\n  {image}\ndebian:7\n")).unwrap();
        for said in [format!("debian:6.1,{image}, debian:7"), format!("@{}", list.display())] {
            let words: Vec<String> = read(&said).unwrap().into_iter().map(|kernel| kernel.word).collect();
            assert_eq!(words, ["debian:6.1", image, "debian:7"]);
        }
    }

    #[test]
    fn a_list_of_which_no_answer_comes_is_refused() {
        for (list, says) in [
            ("debian:6.1", "two kernels or more"),
            ("debian:6.1,debian:6.12,debian:6.1", "debian:6.1 twice"),
            ("debian:6.1,debain:6.12", "there is no debain:6.12"),
            ("debian:6.1,debian:bookworm", "there are "),
            ("debian:6.1,", "name a file"),
            ("@/no/such/list", "cannot read"),
        ] {
            let said = format!("{:#}", read(list).err().unwrap());
            assert!(said.contains(says), "{list}: {said}");
        }
    }
}
