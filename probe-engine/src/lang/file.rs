//! Files of definitions.

/// The definitions in a file, each with the number of its line, counted from 1.
///
/// A `#` at the start of a line or behind white space begins a comment, outside of double quotes; lines with nothing
/// else are left out. A line that ends in a `\` goes on in the next one.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        loop {
            let (index, line) = lines.next()?;
            let mut definition = without_comment(line).to_owned();
            while definition.ends_with('\\') {
                definition.pop();
                let Some((_, next)) = lines.next() else { break };
                definition.push(' ');
                definition.push_str(without_comment(next));
            }
            if !definition.trim().is_empty() {
                return Some((index + 1, definition));
            }
        }
    })
}

fn without_comment(line: &str) -> &str {
    let (mut quoted, mut behind_space) = (false, true);
    let comment = line.find(|c: char| {
        quoted ^= c == '"';
        let begins = c == '#' && behind_space && !quoted;
        behind_space = c.is_whitespace();
        begins
    });
    line.split_at_checked(comment.unwrap_or(line.len())).map_or(line, |(definition, _)| definition).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_continuations() {
        let text = "# reads\n\np vfs_read  # all of them\r\n  p sym#2 x=\\\"a # b\"\np vfs_write \\\n\tif \\\n  x == 1\n#\nlast \\";
        let lines: Vec<(usize, String)> = lines(text).collect();
        let expected = [
            (3, "p vfs_read"),
            (4, "  p sym#2 x=\\\"a # b\""),
            (5, "p vfs_write  \tif    x == 1"),
            (9, "last "),
        ];
        assert_eq!(lines, expected.map(|(number, line)| (number, line.to_owned())));
    }
}
