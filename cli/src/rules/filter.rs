//! Selectors as a filter of the probe language.

use super::mistake::Mistake;
use super::policy::{Comparison, Selector};
use super::values::Kind;
use probe_engine::lang::ast::{Span, Spanned};

/// A value that can be compared.
pub(super) struct Comparable<'a> {
    /// Of its field.
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    /// Its type, as the file has it.
    pub(super) ty: &'a str,
}

/// The text of a filter that grows, and which parts of it stand for what in the file.
#[derive(Default)]
pub(super) struct FilterText {
    pub(super) text: String,
    pub(super) origins: Vec<(std::ops::Range<usize>, Span)>,
}

/// What selectors name.
pub(super) trait Named {
    /// The argument with this index.
    fn argument(&self, index: &Spanned<u32>) -> Result<Comparable<'_>, Mistake>;
    /// The element of `data` with this index.
    fn data(&self, index: &Spanned<u32>) -> Result<Comparable<'_>, Mistake>;
    fn returned(&self) -> Comparable<'_>;
}

/// The field that is compared for `matchPIDs`.
pub(super) const PROCESS: &str = "process";
/// The field that is compared for `matchBinaries`.
pub(super) const BINARY: &str = "binary";

/// How numbers are compared, or texts.
enum Operator {
    /// By an operator of the language.
    Number(&'static str),
    /// Within a range, which is written `LOW:HIGH`.
    Range,
    Equal,
    Prefix,
    Postfix,
    Part,
}

impl FilterText {
    /// Appends the condition that `selector` matches: all of its filters do.
    pub(super) fn selector(&mut self, selector: &Selector, named: &impl Named) -> Result<(), Mistake> {
        let process = || Comparable { name: PROCESS, kind: Kind::Number, ty: "int" };
        let binary = || Comparable { name: BINARY, kind: Kind::Text, ty: "path" };
        let mut all: Vec<(&Comparison, Comparable<'_>)> = Vec::new();
        for own in &selector.arguments {
            all.push((own, named.argument(&own.of)?));
        }
        for own in &selector.data {
            all.push((own, named.data(&own.of)?));
        }
        all.extend(selector.returned.iter().map(|own| (own, named.returned())));
        all.extend(selector.pids.iter().map(|own| (own, process())));
        all.extend(selector.binaries.iter().map(|own| (own, binary())));
        let mut between = "";
        for (comparison, value) in &all {
            self.text.push_str(between);
            self.comparison(comparison, value)?;
            between = " && ";
        }
        Ok(())
    }

    /// Appends one filter: one of its values matches, or none does where it is negated. A value that could not be read matches a
    /// negated one, so that nobody goes unseen by hiding it.
    fn comparison(&mut self, comparison: &Comparison, value: &Comparable<'_>) -> Result<(), Mistake> {
        let (is_negated, operator) = operator(&comparison.operator, value)?;
        self.text.push_str(if is_negated { "!(" } else { "(" });
        let mut between = "";
        for said in &comparison.values {
            self.text.push_str(between);
            let start = self.text.len();
            let condition = condition(&operator, value, said)?;
            self.text.push_str(&condition);
            self.origins.push((start..self.text.len(), said.span.clone()));
            between = " || ";
        }
        self.text.push(')');
        Ok(())
    }
}

/// What an operator means, and whether it is negated.
fn operator(said: &Spanned<String>, value: &Comparable<'_>) -> Result<(bool, Operator), Mistake> {
    let name = said.value.as_str();
    let wrong = |message: String| Mistake::new(said.span.clone(), message);
    let found = match name {
        "Equal" | "In" => (false, Operator::Equal),
        "NotEqual" | "NotIn" => (true, Operator::Equal),
        "GT" | "GreaterThan" => (false, Operator::Number(">")),
        "LT" | "LessThan" => (false, Operator::Number("<")),
        "Mask" => (false, Operator::Number("&")),
        "InRange" => (false, Operator::Range),
        "NotInRange" => (true, Operator::Range),
        "Prefix" => (false, Operator::Prefix),
        "NotPrefix" => (true, Operator::Prefix),
        "Postfix" => (false, Operator::Postfix),
        "NotPostfix" => (true, Operator::Postfix),
        "SubString" => (false, Operator::Part),
        "NotSubString" => (true, Operator::Part),
        _ => {
            return Err(wrong(format!("the operator `{name}` is not taken here")).hint(
                "the operators are Equal, In, GT, LT, Mask, InRange, Prefix, Postfix, SubString, and NotEqual, NotIn, NotInRange, \
                 NotPrefix, NotPostfix, NotSubString",
            ));
        }
    };
    let is_of_numbers = matches!(found.1, Operator::Number(_) | Operator::Range);
    let is_of_texts = matches!(found.1, Operator::Prefix | Operator::Postfix | Operator::Part);
    match value.kind {
        Kind::Number if is_of_texts => Err(wrong(format!("`{name}` compares texts, and `{}` is a number", value.ty))),
        Kind::Text | Kind::LastName if is_of_numbers => Err(wrong(format!("`{name}` compares numbers, and `{}` is a text", value.ty))),
        Kind::LastName if !matches!(found.1, Operator::Postfix) => Err(wrong(format!(
            "`{name}` compares the whole of a path, and of a `{}` its last part alone is known",
            value.ty
        ))
        .hint("compare that with `Postfix` or `NotPostfix`: `/passwd` is a file of that name, in whatever folder")),
        Kind::Several => Err(wrong(format!("a `{}` has several values", value.ty)).hint("name one of them with `resolve`")),
        Kind::Nothing => Err(wrong(format!("of `{}` nothing is read that could be compared", value.ty))),
        Kind::Number | Kind::Text | Kind::LastName => Ok(found),
    }
}

/// A comparison of `value` with one of the values of a filter.
fn condition(operator: &Operator, value: &Comparable<'_>, said: &Spanned<String>) -> Result<String, Mistake> {
    let Comparable { name, kind, .. } = value;
    let number = |text: &str| {
        number(text)
            .ok_or_else(|| Mistake::new(said.span.clone(), format!("`{text}` is no number of 64 bits")))
    };
    Ok(match (operator, kind) {
        (Operator::Number(operator), _) => format!("{name} {operator} {}", number(&said.value)?),
        (Operator::Range, _) => {
            let (low, high) = said.value.split_once(':').ok_or_else(|| {
                Mistake::new(said.span.clone(), "a range is two numbers with a colon between them".to_owned())
                    .hint("write `1:10`")
            })?;
            format!("({name} >= {} && {name} <= {})", number(low)?, number(high)?)
        }
        (Operator::Equal, Kind::Number) => format!("{name} == {}", number(&said.value)?),
        (Operator::Equal, _) => format!("{name} == {}", quoted(&said.value, said)?),
        (Operator::Prefix, _) => format!("{name} ~ {}", quoted(&format!("{}*", literal(&said.value)), said)?),
        (Operator::Part, _) => format!("{name} ~ {}", quoted(&format!("*{}*", literal(&said.value)), said)?),
        (Operator::Postfix, Kind::LastName) => match said.value.strip_prefix('/') {
            // Behind a `/` is the whole of the last part.
            Some(last) if !last.contains('/') && !last.is_empty() => {
                format!("{name} == {}", quoted(last, said)?)
            }
            None if !said.value.contains('/') => {
                format!("{name} ~ {}", quoted(&format!("*{}", literal(&said.value)), said)?)
            }
            _ => {
                return Err(Mistake::new(
                    said.span.clone(),
                    "of a path its last part alone is known".to_owned(),
                )
                .hint("write a name, with one `/` before it if it is the whole"));
            }
        },
        (Operator::Postfix, _) => {
            format!("{name} ~ {}", quoted(&format!("*{}", literal(&said.value)), said)?)
        }
    })
}

/// A number as Go reads it, in the language's own way.
fn number(text: &str) -> Option<i128> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (digits.get(2..)?, 16),
        [b'0', b'o' | b'O', ..] => (digits.get(2..)?, 8),
        [b'0', b'b' | b'B', ..] => (digits.get(2..)?, 2),
        [b'0', _, ..] => (digits.get(1..)?, 8),
        _ => (digits, 10),
    };
    let is_plain = digits.chars().all(|c| c.is_digit(radix));
    let number = i128::from(u64::from_str_radix(digits, radix).ok().filter(|_| is_plain)?);
    let number = if is_negative { -number } else { number };
    (number >= i128::from(i64::MIN)).then_some(number)
}

/// A text of which a pattern means each character.
fn literal(text: &str) -> String {
    text.chars()
        .flat_map(|c| ['*', '?', '[', '\\'].contains(&c).then_some('\\').into_iter().chain([c]))
        .collect()
}

/// A text in quotes.
fn quoted(text: &str, said: &Spanned<String>) -> Result<String, Mistake> {
    let quote = ['"', '\''].into_iter().find(|quote| !text.contains(*quote));
    match quote {
        Some(quote) if !text.contains(char::is_control) => Ok(format!("{quote}{text}{quote}")),
        _ => Err(Mistake::new(
            said.span.clone(),
            "a text with control characters, or with both kinds of quotes, is not compared".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_does() {
        let table = [
            ("0", Some(0)),
            ("12", Some(12)),
            ("-1", Some(-1)),
            ("0x1F", Some(31)),
            ("010", Some(8)),
            ("0o10", Some(8)),
            ("0b11", Some(3)),
            ("18446744073709551615", Some(u64::MAX.into())),
            ("18446744073709551616", None),
            ("-9223372036854775809", None),
            ("", None),
            ("-", None),
            ("0x", None),
            ("+1", None),
            ("1a", None),
            ("0x-1", None),
        ];
        for (text, expected) in table {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn a_pattern_means_each_character_of_a_value() {
        assert_eq!(literal("a*?[b]\\"), "a\\*\\?\\[b]\\\\");
        let said = Spanned { value: String::new(), span: 1..2 };
        assert_eq!(quoted("it's", &said).unwrap(), "\"it's\"");
        assert_eq!(quoted("a\"b", &said).unwrap(), "'a\"b'");
        assert_eq!(quoted("a\"'b", &said).unwrap_err().span, 1..2);
        assert!(quoted("a\nb", &said).is_err());
    }
}
