//! From a hook to definitions of the probe language, by which it is resolved, compared and shown as any other probe.

use super::filter::{BINARY, Comparable, FilterText, Named, PROCESS};
use super::mistake::Mistake;
use super::policy::{Actions, Argument, Hook, HookPlace, Selector};
use super::values::{self, Kind};
use probe_engine::lang::ast::{Span, Spanned};
use std::collections::BTreeSet;
use std::ops::Range;

/// The most selectors that a hook may have. Tetragon has five.
const MOST_SELECTORS: usize = 16;

/// One probe of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Translated {
    /// Its definition.
    pub(super) text: String,
    /// What is made of its hits.
    pub(super) actions: Actions,
    /// Which parts of the definition stand for what in the file; the first one is the place.
    origins: Vec<(Range<usize>, Span)>,
    /// The whole hook.
    span: Span,
}

impl Translated {
    /// The place in the file of what is at `span` of the definition.
    pub(super) fn origin(&self, span: &Span) -> Span {
        let inside =
            |range: &Range<usize>| range.start <= span.start && span.start < range.end.max(range.start + 1);
        let found = self.origins.iter().find(|(range, _)| inside(range));
        found.map_or_else(|| self.span.clone(), |(_, origin)| origin.clone())
    }

    /// The same with other text at `span`.
    pub(super) fn replaced(&self, span: &Span, by: &str) -> Option<Self> {
        let mut new = self.clone();
        if !new.text.is_char_boundary(span.start)
            || !new.text.is_char_boundary(span.end)
            || span.end < span.start
        {
            return None;
        }
        new.text.replace_range(span.clone(), by);
        let more = by.len() as isize - (span.end - span.start) as isize;
        for (range, _) in &mut new.origins {
            for end in [&mut range.start, &mut range.end] {
                if *end >= span.end {
                    *end = end.saturating_add_signed(more);
                }
            }
        }
        Some(new)
    }
}

/// The probes of `hook`: one for all selectors that do the same, and one for each other one. Of several selectors that match a
/// hit, the first one says what is made of it.
pub(super) fn translated(hook: &Hook) -> Result<Vec<Translated>, Mistake> {
    if let Some(selector) = hook.selectors.get(MOST_SELECTORS) {
        return Err(Mistake::new(
            selector.span.clone(),
            format!("a hook has at most {MOST_SELECTORS} selectors"),
        )
        .hint("write another hook at the same function"));
    }
    let Some(first) = hook.selectors.first() else {
        return Ok(vec![definition(hook, &[], &[], Actions::default())?]);
    };
    let rest = hook.selectors.iter().skip(1);
    if rest.clone().all(|selector| selector.actions.do_as(&first.actions)) {
        let all: Vec<_> = hook.selectors.iter().collect();
        return Ok(vec![definition(hook, &all, &[], first.actions.clone())?]);
    }
    let mut probes = Vec::new();
    let mut before: Vec<&Selector> = Vec::new();
    for selector in &hook.selectors {
        probes.push(definition(hook, &[selector], &before, selector.actions.clone())?);
        before.push(selector);
    }
    Ok(probes)
}

/// Names of values that selectors compare.
struct HookValues<'a> {
    hook: &'a Hook,
    returned: Kind,
    names: Vec<String>,
    data_names: Vec<String>,
}

impl HookValues<'_> {
    fn value<'v>(
        of: impl Iterator<Item = (&'v Argument, &'v String)>,
        index: &Spanned<u32>,
        is_it: impl Fn(usize, &Argument) -> bool,
        what: &str,
    ) -> Result<Comparable<'v>, Mistake> {
        let found = of.enumerate().find(|(number, (argument, _))| is_it(*number, argument));
        let Some((_, (argument, name))) = found else {
            return Err(Mistake::new(index.span.clone(), format!("{what} {} is not read", index.value))
                .hint(format!(
                    "name it under `{}`, with its type",
                    if what == "argument" { "args" } else { "data" }
                )));
        };
        Ok(Comparable { name, kind: values::kind(argument)?, ty: &argument.ty.value })
    }
}

impl Named for HookValues<'_> {
    fn argument(&self, index: &Spanned<u32>) -> Result<Comparable<'_>, Mistake> {
        let of = super::policy::ValueSource::Argument(index.value);
        Self::value(self.hook.arguments.iter().zip(&self.names), index, |_, own| own.of == of, "argument")
    }

    fn data(&self, index: &Spanned<u32>) -> Result<Comparable<'_>, Mistake> {
        let wanted = index.value as usize;
        Self::value(self.hook.data.iter().zip(&self.data_names), index, |number, _| number == wanted, "data")
    }

    fn returned(&self) -> Comparable<'_> {
        let ty = self.hook.return_argument.as_ref().map_or("auto", |own| own.ty.value.as_str());
        Comparable { name: RETURNED, kind: self.returned, ty }
    }
}

/// The field of what a function returns.
const RETURNED: &str = "ret";

/// The probe of hits at which one of `selectors` matches, and none of those `before`.
fn definition(
    hook: &Hook,
    selectors: &[&Selector],
    before: &[&Selector],
    actions: Actions,
) -> Result<Translated, Mistake> {
    let mut text = String::from(if hook.returns { "r " } else { "p " });
    let mut origins = Vec::new();
    let place = match &hook.at.value {
        HookPlace::Function(name) => name.clone(),
        HookPlace::SystemCall(name) => format!("syscall:{name}"),
        HookPlace::Tracepoint { system, event } => {
            text = "t ".to_owned();
            format!("{system}:{event}")
        }
        HookPlace::Program { path, symbol } => format!("{path}:{symbol}"),
    };
    let start = text.len();
    text.push_str(&place);
    origins.push((start..text.len(), hook.at.span.clone()));
    let numbered = |all: &[Argument]| -> Vec<String> {
        all.iter().enumerate().map(|(number, argument)| values::name(argument, number)).collect()
    };
    let values = HookValues {
        hook,
        returned: hook.return_argument.as_ref().map_or(Ok(Kind::Number), values::kind)?,
        names: numbered(&hook.arguments),
        data_names: numbered(&hook.data),
    };
    // What selectors alone compare comes first: a caller's long texts may leave no room behind them.
    let mut fields = Vec::new();
    let all = || selectors.iter().chain(before);
    if all().any(|selector| !selector.pids.is_empty()) {
        fields.push(of_hook(hook, PROCESS, "$current->tgid"));
    }
    if all().any(|selector| !selector.binaries.is_empty()) {
        fields.push(of_hook(hook, BINARY, "$current->mm->exe_file->f_path:path"));
    }
    // These do not take the place of what is shown otherwise.
    let shows_all = hook.arguments.is_empty() && hook.data.is_empty() && !fields.is_empty() && !hook.returns;
    for (number, argument) in hook.arguments.iter().enumerate() {
        fields.extend(values::fields(argument, number)?);
    }
    for (number, argument) in hook.data.iter().enumerate() {
        fields.extend(values::fields(argument, number)?);
    }
    match &hook.return_argument {
        Some(argument) => {
            fields.extend(values::fields(&Argument { label: None, ..argument.clone() }, 0)?);
        }
        None if hook.returns => fields.push(of_hook(hook, RETURNED, "$retval")),
        None => {}
    }
    let mut names = BTreeSet::new();
    for field in &fields {
        if !names.insert(&field.name) {
            return Err(Mistake::new(field.span.clone(), format!("two values are called `{}`", field.name))
                .hint("give one of them another `label`"));
        }
        let start = text.len() + 1;
        text.push_str(&format!(" {}={}", field.name, field.fetch));
        origins.push((start..text.len(), field.span.clone()));
    }
    if shows_all {
        text.push_str(" $arg*");
    }
    let filter = filter(selectors, before, &values)?;
    if !filter.text.is_empty() {
        text.push_str(" if ");
        let shift = text.len();
        text.push_str(&filter.text);
        origins.extend(
            filter.origins.into_iter().map(|(range, span)| (range.start + shift..range.end + shift, span)),
        );
    }
    Ok(Translated { text, actions, origins, span: hook.at.span.clone() })
}

fn of_hook(hook: &Hook, name: &str, fetch: &str) -> values::Field {
    values::Field { name: name.to_owned(), fetch: fetch.to_owned(), span: hook.at.span.clone() }
}

/// One of `selectors`, and none of those `before`.
fn filter(
    selectors: &[&Selector],
    before: &[&Selector],
    values: &HookValues<'_>,
) -> Result<FilterText, Mistake> {
    let mut filter = FilterText::default();
    // A selector without filters matches all hits.
    let is_all = |selector: &&Selector| {
        let Selector { arguments, data, returned, pids, binaries, .. } = selector;
        [arguments, data, returned, pids, binaries].iter().all(|all| all.is_empty())
    };
    let mut between = "";
    if !selectors.iter().any(is_all) {
        for selector in selectors {
            filter.text.push_str(between);
            filter.selector(selector, values)?;
            between = " || ";
        }
    }
    if before.is_empty() {
        return Ok(filter);
    }
    if let Some(first) = before.iter().find(|selector| is_all(selector)) {
        return Err(Mistake::new(
            first.span.clone(),
            "this selector matches every hit, so that those behind it never do".to_owned(),
        )
        .hint("write it as the last one"));
    }
    for selector in before {
        filter.text.push_str(if filter.text.is_empty() { "!(" } else { " && !(" });
        filter.selector(selector, values)?;
        filter.text.push(')');
    }
    Ok(filter)
}
