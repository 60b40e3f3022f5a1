//! Selectors of a hook: which hits count, and what is made of them.

use super::fields::Fields;
use super::mistake::Mistake;
use super::policy::{Actions, Comparison, Selector};
use super::yaml::Node;
use probe_engine::lang::ast::Spanned;
use probe_engine::request::{Repeats, RepeatsOf};
use std::time::Duration;

/// Errors are between -4095 and -1 (include/linux/err.h).
const LARGEST_ERROR: i32 = 4095;

/// How the elements of a filter name what they compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// By the `index` of an argument, or of an element of `data`.
    Index,
    /// They need not: there is one.
    One,
}

pub(super) fn selectors(list: &[Node]) -> Result<Vec<Selector>, Mistake> {
    list.iter().map(selector).collect()
}

fn selector(node: &Node) -> Result<Selector, Mistake> {
    let mut fields = Fields::of(node, "a selector")?;
    let span = fields.start();
    let mut all = |key, of| {
        fields.list(key)?.iter().map(|node| comparison(node, key, of)).collect::<Result<Vec<_>, _>>()
    };
    let arguments = all("matchArgs", Of::Index)?;
    let data = all("matchData", Of::Index)?;
    let returned = all("matchReturnArgs", Of::One)?;
    let pids = all("matchPIDs", Of::One)?;
    let binaries = all("matchBinaries", Of::One)?;
    let actions = actions(fields.list("matchActions")?)?;
    const BY_MEMBERS: &str = "compare a member of the task with `data` and `matchData`";
    fields.end(&[
        ("matchNamespaces", BY_MEMBERS),
        ("matchCapabilities", BY_MEMBERS),
        ("matchNamespaceChanges", BY_MEMBERS),
        ("matchCapabilityChanges", BY_MEMBERS),
        ("matchParentBinaries", BY_MEMBERS),
        ("matchReturnActions", "a hook with `return: true` does its `matchActions` at the return"),
        ("matchCurrentCred", BY_MEMBERS),
        ("matchWorkloads", "a guest has no workloads of Kubernetes: leave it out"),
        ("macros", "write the filters at each selector"),
    ])?;
    Ok(Selector { span, arguments, data, returned, pids, binaries, actions })
}

fn comparison(node: &Node, key: &'static str, of: Of) -> Result<Comparison, Mistake> {
    let mut fields = Fields::of(node, &format!("an element of `{key}`"))?;
    let start = fields.start();
    let operator = fields.need_text("operator", key)?;
    let index = fields.number::<u32>("index")?;
    let index = match (index, of) {
        (Some(index), _) => index,
        (None, Of::One) => Spanned { value: 0, span: operator.span.clone() },
        (None, Of::Index) => {
            return Err(Mistake::new(start, format!("an element of `{key}` has no `index`"))
                .hint("say which value it compares"));
        }
    };
    let values = fields.texts("values")?;
    if values.is_empty() {
        return Err(Mistake::new(operator.span, "there is nothing to compare with".to_owned())
            .hint("say what under `values`"));
    }
    const FOLLOWED: &str = "a filter sees one process alone: children are not followed";
    for (key, hint) in [
        ("isNamespacePID", "numbers are those of the guest's first pid namespace: leave it out"),
        ("followForks", FOLLOWED),
        ("followChildren", FOLLOWED),
    ] {
        if fields.flag(key)? {
            return Err(Mistake::new(start, format!("`{key}: true` is not taken here")).hint(hint));
        }
    }
    fields.end(&[("args", "write `index`")])?;
    Ok(Comparison { of: index, operator, values })
}

fn actions(list: &[Node]) -> Result<Actions, Mistake> {
    let mut actions = Actions::default();
    for node in list {
        let mut fields = Fields::of(node, "an action")?;
        let action = fields.need_text("action", "an action")?;
        match action.value.as_str() {
            "Post" => actions.repeats = repeats(&mut fields)?,
            "NoPost" => actions.is_silent = true,
            "Override" => {
                let start = fields.start();
                let error = fields.number::<i32>("argError")?;
                let error = error.ok_or_else(|| {
                    Mistake::new(start, "`Override` has no `argError`".to_owned())
                        .hint("say what the caller gets: `argError: -1` is EPERM")
                })?;
                if !(-LARGEST_ERROR..0).contains(&error.value) {
                    return Err(Mistake::new(
                        error.span,
                        format!("`argError` is an error, from -{LARGEST_ERROR} to -1"),
                    ));
                }
                actions.denied = Some(error);
            }
            "Sigkill" => actions.stops = Some(action.span.clone()),
            other => {
                let hint = match other {
                    "Signal" => "`Sigkill` ends the guest; no other signal is sent",
                    "NotifyEnforcer" => "write `Override` or `Sigkill`",
                    _ => "the actions are `Post`, `NoPost`, `Override` and `Sigkill`",
                };
                return Err(
                    Mistake::new(action.span, format!("the action `{other}` is not taken here")).hint(hint)
                );
            }
        }
        fields.end(&[
            ("kernelStackTrace", "`vmm run --guard --stack --rules FILE` shows who called"),
            ("userStackTrace", "`vmm run --guard --stack --rules FILE` shows who called"),
            ("imaHash", "files are not measured: leave it out"),
        ])?;
    }
    if let (Some(span), Some(_)) = (&actions.stops, &actions.denied) {
        return Err(Mistake::new(span.clone(), "a hit is either denied or ends the guest".to_owned())
            .hint("leave one out"));
    }
    Ok(actions)
}

/// Which hits are not told because they repeat another one.
fn repeats(fields: &mut Fields<'_>) -> Result<Option<Repeats>, Mistake> {
    let limit = fields.text("rateLimit")?;
    let scope = fields.text("rateLimitScope")?;
    let of = match scope.as_ref().map(|scope| scope.value.as_str()) {
        None | Some("thread") => RepeatsOf::Thread,
        Some("process") => RepeatsOf::Process,
        Some("global") => RepeatsOf::Guest,
        Some(_) => {
            let span = scope.map(|scope| scope.span).unwrap_or_default();
            return Err(Mistake::new(span, "`rateLimitScope` is `thread`, `process` or `global`".to_owned()));
        }
    };
    let Some(limit) = limit else { return Ok(None) };
    let (digits, unit) = match limit.value.strip_suffix(['s', 'm', 'h']) {
        Some(digits) => (digits, limit.value.as_bytes().last()),
        None => (limit.value.as_str(), None),
    };
    let seconds = digits.parse::<u64>().ok().and_then(|number| match unit {
        Some(b'm') => number.checked_mul(60),
        Some(b'h') => number.checked_mul(3600),
        _ => Some(number),
    });
    match seconds {
        Some(seconds) => Ok(Some(Repeats { within: Duration::from_secs(seconds), of })),
        None => Err(Mistake::new(
            limit.span,
            "`rateLimit` is a time: a number of seconds, or with `s`, `m` or `h`".to_owned(),
        )),
    }
}
