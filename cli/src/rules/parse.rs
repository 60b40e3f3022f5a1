//! From the tree of a file to its policies. What is not taken is refused where it stands.

use super::fields::Fields;
use super::mistake::Mistake;
use super::policy::{Argument, Hook, HookPlace, Policy, ValueSource};
use super::selectors::selectors;
use super::values::COMMAND_LINE;
use super::yaml::{Node, documents};
use crate::attack;
use crate::detection::Severity;
use probe_engine::lang::ast::{Span, Spanned};

/// The longest name, label or message, in bytes.
const LONGEST: usize = 512;

/// The policies of a file.
pub(super) fn policies(text: &str) -> Result<Vec<Policy>, Mistake> {
    let policies: Vec<Policy> = documents(text)?.iter().map(policy).collect::<Result<_, _>>()?;
    match policies.is_empty() {
        true => Err(Mistake::new(0..0, "there is no rule in this file".to_owned())
            .hint("a rule begins with `apiVersion: cilium.io/v1alpha1` and `kind: TracingPolicy`")),
        false => Ok(policies),
    }
}

fn policy(node: &Node) -> Result<Policy, Mistake> {
    let mut fields = Fields::of(node, "a policy")?;
    let version = fields.need_text("apiVersion", "a policy")?;
    is_word(&version, "cilium.io/v1alpha1")?;
    let kind = fields.need_text("kind", "a policy")?;
    is_word(&kind, "TracingPolicy")?;
    let mut metadata = Fields::of(fields.need("metadata", "a policy")?, "`metadata`")?;
    let spec = fields.need("spec", "a policy")?;
    fields.end(&[])?;
    let name = metadata.need_text("name", "`metadata`")?;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if name.value.is_empty() || name.value.len() > LONGEST || !name.value.chars().all(is_of_name) {
        return Err(Mistake::new(name.span, "a name has letters, digits, `-`, `.` and `_`".to_owned()));
    }
    let (mut description, mut unseen) = (None, None);
    if let Some(node) = metadata.take("annotations") {
        // Annotations are for whoever reads them: others are passed over.
        let mut annotations = Fields::of(node, "`annotations`")?;
        description = annotations.text("description")?.map(|text| text.value);
        unseen = annotations.text("unseen")?.map(|text| text.value);
    }
    metadata.take("labels");
    metadata.end(&[("namespace", "a guest has no namespaces of Kubernetes: leave it out")])?;
    let mut spec = Fields::of(spec, "`spec`")?;
    let mut hooks = Vec::new();
    for node in spec.list("kprobes")? {
        hooks.push(kprobe(node)?);
    }
    for node in spec.list("tracepoints")? {
        hooks.push(tracepoint(node)?);
    }
    for node in spec.list("uprobes")? {
        uprobe(node, &mut hooks)?;
    }
    for node in spec.list("lsmhooks")? {
        hooks.push(lsm_hook(node)?);
    }
    let start = spec.start();
    spec.end(&[
        ("podSelector", "a guest has no pods: leave it out"),
        (
            "containerSelector",
            "containers are not told apart: compare `$cgroup` in a definition of `vmm run --probe`",
        ),
        ("hostSelector", "a guest is one host: leave it out"),
        ("enforcers", "write `matchActions` with `Override` or `Sigkill` at each hook"),
        ("lists", "write a hook for each function"),
        ("options", "leave it out"),
        ("usdts", "`vmm run --probe 'usdt PATH:PROVIDER:NAME'` has these"),
        ("loader", "leave it out"),
    ])?;
    if hooks.is_empty() {
        return Err(Mistake::new(start, "the rule has no hooks".to_owned()).hint("say which under `kprobes`"));
    }
    Ok(Policy { name, description, unseen, hooks })
}

fn is_word(said: &Spanned<String>, word: &str) -> Result<(), Mistake> {
    match said.value == word {
        true => Ok(()),
        false => Err(Mistake::new(said.span.clone(), format!("`{}` is not taken here", said.value))
            .hint(format!("write `{word}`"))),
    }
}

fn kprobe(node: &Node) -> Result<Hook, Mistake> {
    let mut fields = Fields::of(node, "a kprobe")?;
    let call = fields.need_text("call", "a kprobe")?;
    let is_system_call = fields.flag("syscall")?;
    let place = place(&call, is_system_call)?;
    let mut hook = hook(&mut fields, Spanned { value: place, span: call.span })?;
    hook.returns = fields.flag("return")?;
    let returned = fields.take("returnArg");
    hook.return_argument = returned.map(|node| argument(node, Some(ValueSource::Returned))).transpose()?;
    if let (Some(node), false) = (returned, hook.returns) {
        return Err(Mistake::new(node.span.clone(), "`returnArg` is what a return has".to_owned())
            .hint("write `return: true` as well"));
    }
    if let Some(node) = fields.take("ignore") {
        let mut ignore = Fields::of(node, "`ignore`")?;
        hook.may_be_missing = ignore.flag("callNotFound")?;
        ignore.end(&[])?;
    }
    fields.end(&[("returnArgAction", "sockets are not tracked: leave it out"), ("data", "it is a list")])?;
    check_returns(&hook)?;
    Ok(hook)
}

/// What is said of every kind of hook.
fn hook(fields: &mut Fields<'_>, at: Spanned<HookPlace>) -> Result<Hook, Mistake> {
    let arguments = fields.list("args")?.iter().map(|node| argument(node, None)).collect::<Result<_, _>>()?;
    let data = fields
        .list("data")?
        .iter()
        .map(|node| argument(node, Some(ValueSource::Task)))
        .collect::<Result<_, _>>()?;
    let message = fields.text("message")?;
    let tags = fields.texts("tags")?;
    for text in message.iter().chain(&tags) {
        if text.value.len() > LONGEST || text.value.contains(char::is_control) {
            return Err(Mistake::new(
                text.span.clone(),
                format!("this is one line of at most {LONGEST} bytes"),
            ));
        }
    }
    for tag in &tags {
        let (of, hint) = match &*tag.value {
            text if Severity::is_misspelled(text) => {
                ("severity", "there is informational, low, medium, high and critical")
            }
            text if attack::is_misspelled(text) => ("technique", "a number is as in attack.T1547.006"),
            _ => continue,
        };
        let message = format!("`{}` is no {of}", tag.value);
        return Err(Mistake::new(tag.span.clone(), message).hint(hint));
    }
    Ok(Hook {
        at,
        returns: false,
        arguments,
        data,
        return_argument: None,
        message: message.map(|text| text.value),
        tags: tags.into_iter().map(|tag| tag.value).collect(),
        selectors: selectors(fields.list("selectors")?)?,
        may_be_missing: false,
    })
}

/// Where `call` is.
fn place(call: &Spanned<String>, is_system_call: bool) -> Result<HookPlace, Mistake> {
    let wrong = |message: String| Mistake::new(call.span.clone(), message);
    let name = call.value.as_str();
    if name.starts_with("list:") {
        return Err(
            wrong("a list of functions is not taken here".to_owned()).hint("write a hook for each function")
        );
    }
    let is_function = match name.split_once(':') {
        // One of a module.
        Some((module, function)) => is_symbol(module) && is_symbol(function),
        // Of several that share a name, one has its number behind a `#`.
        None => is_symbol(&name.replacen('#', "_", 1)),
    };
    if !is_function {
        return Err(wrong(format!("`{name}` is no name of a function"))
            .hint("write the function's name alone, and a hook for each function"));
    }
    if !is_system_call {
        return Ok(HookPlace::Function(name.to_owned()));
    }
    let call = ["__x64_sys_", "sys_"].iter().find_map(|prefix| name.strip_prefix(prefix));
    match call {
        Some(call) => Ok(HookPlace::SystemCall(call.to_owned())),
        None => Err(wrong(format!("`{name}` is no system call's name"))
            .hint(format!("write `sys_{name}`, or leave out `syscall: true`"))),
    }
}

/// Names of functions; of those that the compiler has made of others, too.
fn is_symbol(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
}

fn tracepoint(node: &Node) -> Result<Hook, Mistake> {
    let mut fields = Fields::of(node, "a tracepoint")?;
    let system = fields.need_text("subsystem", "a tracepoint")?;
    let event = fields.need_text("event", "a tracepoint")?;
    for name in [&system, &event] {
        if !is_symbol(&name.value) {
            return Err(Mistake::new(
                name.span.clone(),
                format!("`{}` is no name of a tracepoint", name.value),
            ));
        }
    }
    let is_raw = fields.flag("raw")?;
    let span = event.span.clone();
    let value = HookPlace::Tracepoint { system: system.value, event: event.value };
    let hook = hook(&mut fields, Spanned { value, span })?;
    fields.end(&[])?;
    if let (Some(argument), false) = (hook.arguments.first(), is_raw) {
        return Err(Mistake::new(
            argument.ty.span.clone(),
            "arguments of a tracepoint are those that the kernel calls it with".to_owned(),
        )
        .hint("write `raw: true`, and count `index` from the first of them; without `args` all are shown"));
    }
    check_returns(&hook)?;
    Ok(hook)
}

fn uprobe(node: &Node, hooks: &mut Vec<Hook>) -> Result<(), Mistake> {
    let mut fields = Fields::of(node, "a uprobe")?;
    let path = fields.need_text("path", "a uprobe")?;
    let is_path = path.value.starts_with('/')
        && !path.value.contains([':', '"'])
        && !path.value.contains(char::is_whitespace);
    if !is_path {
        return Err(Mistake::new(
            path.span,
            "`path` is the whole path of a file, without spaces and colons".to_owned(),
        ));
    }
    let symbols = fields.texts("symbols")?;
    let symbols: Vec<_> = symbols.into_iter().chain(fields.text("symbol")?).collect();
    let read =
        hook(&mut fields, Spanned { value: HookPlace::Function(String::new()), span: path.span.clone() })?;
    fields.end(&[("offsets", "name functions under `symbols`")])?;
    check_returns(&read)?;
    if symbols.is_empty() {
        return Err(Mistake::new(path.span, "a uprobe has no `symbols`".to_owned()));
    }
    for symbol in symbols {
        if !is_symbol(&symbol.value) {
            return Err(Mistake::new(symbol.span, format!("`{}` is no name of a function", symbol.value)));
        }
        let value = HookPlace::Program { path: path.value.clone(), symbol: symbol.value };
        hooks.push(Hook { at: Spanned { value, span: symbol.span }, ..read.clone() });
    }
    Ok(())
}

/// A hook of the kernel's security modules is where the kernel asks them all.
fn lsm_hook(node: &Node) -> Result<Hook, Mistake> {
    let mut fields = Fields::of(node, "an LSM hook")?;
    let name = fields.need_text("hook", "an LSM hook")?;
    if !is_symbol(&name.value) {
        return Err(Mistake::new(name.span, format!("`{}` is no name of a hook", name.value)));
    }
    // security_mmap_file() reckons what it hands to the modules.
    if name.value == "mmap_file" {
        return Err(Mistake::new(
            name.span,
            "security_mmap_file has other arguments than the hook `mmap_file`".to_owned(),
        )
        .hint("write a kprobe at security_mmap_file, with the arguments of that"));
    }
    let value = HookPlace::Function(format!("security_{}", name.value));
    let hook = hook(&mut fields, Spanned { value, span: name.span })?;
    fields.end(&[])?;
    check_returns(&hook)?;
    Ok(hook)
}

fn argument(node: &Node, of: Option<ValueSource>) -> Result<Argument, Mistake> {
    let mut fields = Fields::of(node, "an argument")?;
    let start = fields.start();
    let ty = fields.need_text("type", "an argument")?;
    let index = fields.number::<u32>("index")?;
    let source = fields.text("source")?;
    let of = match (of, source) {
        (Some(ValueSource::Task), Some(said)) => {
            is_word(&said, "current_task").map(|()| ValueSource::Task)?
        }
        (Some(ValueSource::Task), None) => {
            return Err(Mistake::new(start, "an element of `data` has no `source`".to_owned())
                .hint("write `source: current_task`"));
        }
        (_, Some(said)) => {
            return Err(Mistake::new(said.span, "what is no argument is read under `data`".to_owned()));
        }
        (Some(of), None) => of,
        (None, None) => match index {
            Some(index) if index.value < MOST_ARGUMENTS => ValueSource::Argument(index.value),
            Some(index) => {
                return Err(Mistake::new(
                    index.span,
                    format!("a function has at most {MOST_ARGUMENTS} arguments here"),
                ));
            }
            None => {
                return Err(
                    Mistake::new(start, "an argument has no `index`".to_owned()).hint("the first one is 0")
                );
            }
        },
    };
    let argument = Argument { of, ty, label: fields.text("label")?, resolve: fields.text("resolve")? };
    let is_of_task = argument.of == ValueSource::Task;
    if argument.ty.value == COMMAND_LINE && !(is_of_task && argument.resolve.is_none()) {
        return Err(Mistake::new(argument.ty.span, format!("a `{COMMAND_LINE}` is one of a task"))
            .hint("write it under `data`, with `source: current_task` and without `resolve`"));
    }
    if is_of_task && argument.resolve.is_none() && argument.ty.value != COMMAND_LINE {
        return Err(Mistake::new(start, "`data` of a task is a member of it".to_owned())
            .hint("say which with `resolve`"));
    }
    fields.end(&[
        (
            "sizeArgIndex",
            "a buffer's length is not read from another argument: use `string` where it is text",
        ),
        ("size", "a buffer's length is not taken: use `string` where it is text"),
        ("returnCopy", "write `return: true`: what arguments lead to is read at the return then"),
        ("maxData", "a string is read up to 4096 bytes: leave it out"),
        ("btfType", "leave it out: types are those that the kernel says"),
        ("overwriteReturn", "write `matchActions` with `Override`"),
        ("checkOnlyType", "leave it out"),
    ])?;
    Ok(argument)
}

/// More than functions of the kernel have.
const MOST_ARGUMENTS: u32 = 16;

/// What a return has is compared at returns alone, and what becomes of a call is decided before it.
fn check_returns(hook: &Hook) -> Result<(), Mistake> {
    for selector in &hook.selectors {
        if let (Some(of), false) = (selector.returned.first(), hook.returns) {
            return Err(Mistake::new(
                of.operator.span.clone(),
                "a call that is about to be made has returned nothing".to_owned(),
            )
            .hint("write `return: true` as well"));
        }
        let deciding: Option<(&str, Span)> = match &selector.actions {
            actions if actions.denied.is_some() => {
                actions.denied.as_ref().map(|said| ("Override", said.span.clone()))
            }
            actions => actions.stops.clone().map(|span| ("Sigkill", span)),
        };
        if let (Some((action, span)), true) = (deciding, hook.returns) {
            return Err(Mistake::new(
                span,
                format!("`{action}` is done before the call, and this hook is at its return"),
            )
            .hint("leave out `return: true`"));
        }
    }
    Ok(())
}
