//! `[NAME=]FETCH[:TYPE]`: one argument, and which types go with which fetch.

use super::ast::{Argument, Element, FetchExpr, FetchType, Spanned, Variable};
use super::error::{Error, Mistake, Named};
use super::part::Part;
use super::place::PlaceKind;
use super::{fetch, types};

/// The kernel's MAX_TRACE_ARGS.
const MOST_ARGUMENTS: usize = 128;
/// The kernel's MAX_ARG_NAME_LEN.
const LONGEST_NAME: usize = 32;

/// Names that every event has already.
const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_func",
    "__probe_ret_ip",
];

/// The name of the argument at `index`, counted from 0, of all that a probe has in the end: its own, the parameter's,
/// or `arg1`, `arg2`...
#[must_use]
pub fn argument_name(argument: &Argument, index: usize) -> String {
    // The kernel makes another fetch of these.
    let is_of_other =
        argument.ty.as_ref().is_some_and(|ty| matches!(ty.value.element, Element::Dentry | Element::File));
    match (&argument.name, &argument.fetch.value) {
        (Some(name), _) => name.value.clone(),
        (None, FetchExpr::Variable { of: Spanned { value: Variable::Named(name), .. }, path })
            if path.is_empty() && !is_of_other =>
        {
            name.clone()
        }
        _ => format!("arg{}", index + 1),
    }
}

/// Checks the names of all arguments that a probe has in the end: none twice, none that every event has already, and no
/// more than the kernel allows.
///
/// # Errors
/// The first [`Mistake`] among them.
pub fn check_names(args: &[Argument]) -> Result<(), Error> {
    let mut names: Vec<String> = Vec::new();
    for (index, argument) in args.iter().enumerate() {
        let span = argument.name.as_ref().map_or(&argument.fetch.span, |name| &name.span);
        let error = |mistake| Error { span: span.clone(), mistake };
        if index >= MOST_ARGUMENTS {
            return Err(error(Mistake::TooManyArguments(MOST_ARGUMENTS)));
        }
        let name = argument_name(argument, index);
        if RESERVED.contains(&name.as_str()) {
            return Err(error(Mistake::ReservedName(name)));
        }
        if names.contains(&name) {
            return Err(error(Mistake::UsedName(name)));
        }
        names.push(name);
    }
    Ok(())
}

/// A whole argument.
pub(super) fn parse(part: Part<'_>, site: PlaceKind) -> Result<Argument, Error> {
    let (name, body) = split_name(part)?;
    let (fetch_part, ty) = split_type(body);
    let fetch = fetch::parse(fetch_part, site, 0)?;
    let ty = ty.map(types::parse).transpose()?;
    if fetch.value == FetchExpr::AllArguments && (name.is_some() || ty.is_some()) {
        return Err(part.wrong(Mistake::DressedAllArguments));
    }
    if let Some(ty) = &ty {
        check_type(&fetch.value, &ty.value).map_err(|mistake| Error { span: ty.span.clone(), mistake })?;
    }
    Ok(Argument { name, fetch, ty })
}

fn split_name(part: Part<'_>) -> Result<(Option<Spanned<String>>, Part<'_>), Error> {
    let name_end = part.text().find(['=', '"']);
    let Some((name, body)) = part.split_once('=').filter(|(name, _)| name_end == Some(name.text().len()))
    else {
        return Ok((None, part));
    };
    let what = Named::Argument;
    if name.is_empty() {
        return Err(part.split_at(1).0.wrong(Mistake::NoName(what)));
    }
    if name.text().len() > LONGEST_NAME {
        return Err(name.wrong(Mistake::NameTooLong { what, most: LONGEST_NAME }));
    }
    if !name.is_name() {
        return Err(name.wrong(Mistake::BadName { what, name: name.text().to_owned() }));
    }
    Ok((Some(name.spanned()), body))
}

/// A text may have a `:` in it.
fn split_type(body: Part<'_>) -> (Part<'_>, Option<Part<'_>>) {
    let mut rest = body;
    if rest.eat("\\\"") {
        rest.take_while(|c| c != '"');
    }
    match rest.text().find(':') {
        None => (body, None),
        Some(colon) => {
            let (fetch, mut ty) = body.split_at(body.text().len() - rest.text().len() + colon);
            ty.take_char();
            (fetch, Some(ty))
        }
    }
}

/// Whether a value of `fetch` can be read as `ty`, as far as that does not depend on the function's parameters.
fn check_type(fetch: &FetchExpr, ty: &FetchType) -> Result<(), Mistake> {
    let is_text =
        matches!(fetch, FetchExpr::Comm | FetchExpr::Cgroup | FetchExpr::CommandLine | FetchExpr::Text(_));
    if is_text && *ty != (FetchType { element: Element::String, count: None }) {
        return Err(Mistake::NeedsString);
    }
    let reads_memory = match fetch {
        FetchExpr::Memory(_)
        | FetchExpr::Symbol { .. }
        | FetchExpr::Dereference { .. }
        | FetchExpr::Cast(_) => true,
        FetchExpr::PerCpu { read, .. } => *read,
        FetchExpr::Variable { path, .. } => !path.is_empty(),
        _ => false,
    };
    match ty.element {
        Element::String | Element::UserString => {
            // A parameter, by its name or its number, or what a function returns, may be a `char *`.
            let may_point = matches!(
                fetch,
                FetchExpr::Variable { .. }
                    | FetchExpr::ReturnValue
                    | FetchExpr::Number(_)
                    | FetchExpr::Argument(_)
            ) || is_text;
            if !reads_memory && !may_point {
                return Err(Mistake::StringOfValue);
            }
        }
        Element::SymbolString => {
            let of_user = matches!(fetch, FetchExpr::Dereference { user: true, .. });
            let is_computed = matches!(
                fetch,
                FetchExpr::StackPointer
                    | FetchExpr::Number(_)
                    | FetchExpr::Current
                    | FetchExpr::PerCpu { read: false, .. }
            );
            if of_user || is_computed {
                return Err(Mistake::SymbolOfNoValue);
            }
        }
        _ if ty.count.is_some() && !reads_memory => return Err(Mistake::ArrayOfValue),
        _ => {}
    }
    Ok(())
}
