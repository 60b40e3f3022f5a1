//! A file in YAML as a tree in which each value knows where it stands. What a file can make of little text is bounded: there are no
//! aliases, and nothing is nested deep.

use super::mistake::Mistake;
use probe_engine::lang::ast::{Span, Spanned};
use saphyr_parser::{Event, Parser, Tag};
use std::borrow::Cow;
use std::iter::Peekable;

/// The longest file that is read, in bytes.
const LONGEST: usize = 1 << 20;
/// How deep values may be nested. Policies have eight levels.
const DEEPEST: usize = 32;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) value: Value,
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text, a number, `true`: all of these are read as they are written.
    Text(String),
    List(Vec<Node>),
    /// Keys in the order in which they are written, none twice.
    Map(Vec<(Spanned<String>, Node)>),
}

impl Value {
    /// What it is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// The documents of a file.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, Mistake> {
    if text.len() > LONGEST {
        return Err(Mistake::new(0..0, format!("the file is longer than {LONGEST} bytes"))
            .hint("write several files, and name each with --rules"));
    }
    let places = Places::of(text);
    let mut events = Events { parser: Parser::new_from_str(text).peekable(), places: &places };
    let mut documents = Vec::new();
    loop {
        match events.next()? {
            None | Some((Event::StreamEnd, _)) => return Ok(documents),
            Some((Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing, _)) => {
            }
            Some((event, span)) => {
                let node = events.node(event, span, DEEPEST)?;
                // Nothing between two `---`, or a comment alone.
                if node.value != Value::Text(String::new()) {
                    documents.push(node);
                }
            }
        }
    }
}

/// Where characters are in bytes: the parser counts characters.
struct Places(Vec<usize>);

impl Places {
    fn of(text: &str) -> Self {
        Self(text.char_indices().map(|(at, _)| at).chain([text.len()]).collect())
    }

    fn at(&self, character: usize) -> usize {
        self.0.get(character).or(self.0.last()).copied().unwrap_or(0)
    }

    fn span(&self, span: saphyr_parser::Span) -> Span {
        let start = self.at(span.start.index());
        start..self.at(span.end.index()).max(start)
    }
}

/// What the parser has still to say.
struct Events<'t, 'p> {
    parser: Peekable<Parser<'t, saphyr_parser::StrInput<'t>>>,
    places: &'p Places,
}

impl<'t> Events<'t, '_> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, Mistake> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, self.places.span(span)))),
            Some(Err(error)) => {
                let at = self.places.at(error.marker().index());
                Err(Mistake::new(at..at, format!("this is no YAML: {}", error.info())))
            }
        }
    }

    /// The value that begins with `event`, which nests others as deep as `depth`.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Mistake> {
        if depth == 0 {
            return Err(Mistake::new(span, format!("this is nested deeper than {DEEPEST} levels")));
        }
        let start = span.start;
        match event {
            Event::Scalar(text, _, anchor, tag) => {
                check(&span, anchor, tag.as_ref())?;
                Ok(Node { span, value: Value::Text(text.into_owned()) })
            }
            Event::SequenceStart(anchor, tag) => {
                check(&span, anchor, tag.as_ref())?;
                let mut list = Vec::new();
                loop {
                    match self.some()? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => list.push(self.node(event, span, depth - 1)?),
                    }
                }
                let end = list.last().map_or(span.end, |last| last.span.end);
                Ok(Node { span: start..end, value: Value::List(list) })
            }
            Event::MappingStart(anchor, tag) => {
                check(&span, anchor, tag.as_ref())?;
                let mut map: Vec<(Spanned<String>, Node)> = Vec::new();
                loop {
                    let (event, at) = self.some()?;
                    if event == Event::MappingEnd {
                        break;
                    }
                    let key = self.node(event, at, depth - 1)?;
                    let Value::Text(name) = key.value else {
                        return Err(Mistake::new(
                            key.span,
                            format!("a key is a word, and not {}", key.value.kind()),
                        ));
                    };
                    if map.iter().any(|(own, _)| own.value == name) {
                        return Err(Mistake::new(key.span, format!("`{name}` is said twice")));
                    }
                    let (event, at) = self.some()?;
                    map.push((Spanned { value: name, span: key.span }, self.node(event, at, depth - 1)?));
                }
                let start = map.first().map_or(start, |(key, _)| key.span.start);
                let end = map.last().map_or(span.end, |(_, last)| last.span.end);
                Ok(Node { span: start..end.max(start), value: Value::Map(map) })
            }
            Event::Alias(_) => {
                Err(Mistake::new(span, "an alias is not read".to_owned())
                    .hint("write out what it stands for"))
            }
            // The parser says none of these within a value.
            _ => Err(Mistake::new(span, "a value is missing".to_owned())),
        }
    }

    fn some(&mut self) -> Result<(Event<'t>, Span), Mistake> {
        let end = self.places.at(usize::MAX);
        self.next()?.ok_or_else(|| Mistake::new(end..end, "the file ends within a value".to_owned()))
    }
}

/// Refuses what says more of a value than what is written.
fn check(span: &Span, anchor: usize, tag: Option<&Cow<'_, Tag>>) -> Result<(), Mistake> {
    let hint = "leave it out";
    match (anchor, tag) {
        (_, Some(_)) => Err(Mistake::new(span.clone(), "a tag is not read".to_owned()).hint(hint)),
        (1.., None) => Err(Mistake::new(span.clone(), "an anchor is not read".to_owned()).hint(hint)),
        (0, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text of a mistake and what it marks.
    fn wrong(text: &str) -> (String, &str) {
        let mistake = documents(text).unwrap_err();
        (mistake.message, &text[mistake.span])
    }

    #[test]
    fn values_know_where_they_stand() {
        let text = "# ä\nname: ää\nlist:\n- \"ß x\"\n- {k: v}\n---\nother\n---\n";
        let [first, other] = &documents(text).unwrap()[..] else { panic!() };
        let Value::Map(map) = &first.value else { panic!() };
        let [(name, value), (_, list)] = &map[..] else { panic!() };
        assert_eq!((&text[name.span.clone()], &text[value.span.clone()]), ("name", "ää"));
        let Value::List(list) = &list.value else { panic!() };
        let spans: Vec<_> = list.iter().map(|node| text[node.span.clone()].trim()).collect();
        assert_eq!(spans[0], "\"ß x\"");
        assert!(spans[1].starts_with("k: v"), "{spans:?}");
        assert_eq!(other.value, Value::Text("other".to_owned()));
    }

    #[test]
    fn what_could_grow_is_refused_at_its_place() {
        assert_eq!(wrong("a: &x 1\nb: *x").0, "an anchor is not read");
        assert_eq!(wrong("a: !!int 1").0, "a tag is not read");
        assert_eq!(wrong("a: 1\na: 2"), ("`a` is said twice".to_owned(), "a"));
        assert_eq!(wrong("? [a]\n: b").0, "a key is a word, and not a list");
        let deep = format!("{}{}", "[".repeat(DEEPEST + 1), "]".repeat(DEEPEST + 1));
        assert_eq!(wrong(&deep).0, "this is nested deeper than 32 levels");
        assert!(wrong("a: [1").0.starts_with("this is no YAML: "));
        assert!(wrong(&" ".repeat(LONGEST + 1)).0.contains("longer than"));
    }

    proptest! {
        #[test]
        fn no_text_panics_the_reader(text in "[-a:\\[\\]{}&*!|>'\"#? \n\t\u{e4}%@`,]{0,64}") {
            if let Err(mistake) = documents(&text) {
                prop_assert!(text.get(mistake.span).is_some());
            }
        }
    }
}
