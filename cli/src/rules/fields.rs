//! The keys of a map, of which each is taken once. What nobody takes is refused where it stands.

use super::mistake::Mistake;
use super::yaml::{Node, Value};
use probe_engine::lang::ast::{Span, Spanned};
use probe_engine::linux::nearest::nearest;

/// How many names are offered for one that there is not.
const SUGGESTIONS: usize = 2;

/// What is left of a map.
pub(super) struct Fields<'a> {
    /// Its first key.
    first: Span,
    left: Vec<&'a (Spanned<String>, Node)>,
    taken: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The keys of `node`, which is `what`.
    pub(super) fn of(node: &'a Node, what: &str) -> Result<Self, Mistake> {
        let Value::Map(map) = &node.value else {
            let message = format!("{what} is a map with keys, and this is {}", node.value.kind());
            return Err(Mistake::new(node.span.clone(), message));
        };
        let first = map.first().map_or(&node.span, |(key, _)| &key.span).clone();
        Ok(Self { first, left: map.iter().collect(), taken: Vec::new() })
    }

    /// Where the map begins.
    pub(super) fn start(&self) -> Span {
        self.first.clone()
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<&'a Node> {
        self.taken.push(key);
        let at = self.left.iter().position(|(own, _)| own.value == key)?;
        Some(&self.left.remove(at).1)
    }

    pub(super) fn need(&mut self, key: &'static str, of: &str) -> Result<&'a Node, Mistake> {
        let start = self.start();
        self.take(key).ok_or_else(|| Mistake::new(start, format!("{of} has no `{key}`")))
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<Spanned<String>>, Mistake> {
        self.take(key).map(|node| text(node, key)).transpose()
    }

    pub(super) fn need_text(&mut self, key: &'static str, of: &str) -> Result<Spanned<String>, Mistake> {
        text(self.need(key, of)?, key)
    }

    /// `true` or `false`; the latter where it is not said.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool, Mistake> {
        let Some(said) = self.text(key)? else { return Ok(false) };
        match said.value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Mistake::new(said.span, format!("`{key}` is `true` or `false`"))),
        }
    }

    pub(super) fn number<T: std::str::FromStr>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Spanned<T>>, Mistake> {
        let Some(Spanned { value, span }) = self.text(key)? else { return Ok(None) };
        match value.parse() {
            Ok(value) => Ok(Some(Spanned { value, span })),
            Err(_) => Err(Mistake::new(
                span,
                format!("`{key}` is a number, and `{value}` is none that is taken here"),
            )),
        }
    }

    /// The elements of a list; none where it is not said.
    pub(super) fn list(&mut self, key: &'static str) -> Result<&'a [Node], Mistake> {
        match self.take(key) {
            None => Ok(&[]),
            Some(Node { value: Value::List(list), .. }) => Ok(list),
            Some(node) => Err(Mistake::new(
                node.span.clone(),
                format!("`{key}` is a list, and this is {}", node.value.kind()),
            )
            .hint("begin each element with `- `")),
        }
    }

    /// The texts of a list.
    pub(super) fn texts(&mut self, key: &'static str) -> Result<Vec<Spanned<String>>, Mistake> {
        self.list(key)?.iter().map(|node| text(node, key)).collect()
    }

    /// Nothing else may be said. Of some keys it is known why they are not taken.
    pub(super) fn end(self, refused: &[(&str, &str)]) -> Result<(), Mistake> {
        let Some((key, _)) = self.left.first() else { return Ok(()) };
        let name = key.value.as_str();
        if let Some((_, hint)) = refused.iter().find(|(own, _)| *own == name) {
            return Err(Mistake::new(key.span.clone(), format!("`{name}` is not taken here")).hint(*hint));
        }
        let near = nearest(self.taken.iter().copied(), name, SUGGESTIONS);
        let near = if near.is_empty() { self.taken } else { near };
        let known: Vec<_> = near.iter().map(|key| format!("`{key}`")).collect();
        Err(Mistake::new(key.span.clone(), format!("there is no key `{name}` here"))
            .hint(format!("there is {}", known.join(", "))))
    }
}

/// A text of one line.
fn text(node: &Node, key: &str) -> Result<Spanned<String>, Mistake> {
    match &node.value {
        Value::Text(text) => Ok(Spanned { value: text.clone(), span: node.span.clone() }),
        other => {
            Err(Mistake::new(node.span.clone(), format!("`{key}` is a text, and this is {}", other.kind())))
        }
    }
}
