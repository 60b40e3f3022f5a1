//! From what `--probe` and the lines of `--probes` say to the probes that are asked for.

use crate::asked::{Asked, Counted, Style};
use crate::mistake::{self, Mistake};
use crate::say::note;
use crate::symbol_file::KernelLines;
use anyhow::{Context, Result, bail};
use probe_engine::capture::Capture;
use probe_engine::capture::typed::{self, Expand, NoArguments};
use probe_engine::lang;
use probe_engine::lang::ast::{self, Definition, EventName, Filter, Hist, Spanned, Statement};
use probe_engine::lang::compile::{self, Site};
use probe_engine::linux::btf::Btf;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, Trigger};
use probe_engine::probe::resolve::{Refused, resolve, resolve_in_source};
use probe_engine::probe::spec::{Location, ProbeSpec};

/// What was asked for came to this.
pub(crate) struct Found {
    pub(crate) probes: Vec<Asked>,
    /// Patterns, and which of their matches are left out.
    pub(crate) refused: Vec<(String, Vec<Refused>)>,
}

/// Definitions become probes by this.
pub(crate) struct Reader<'a, 'k> {
    kernel: &'a Kernel,
    btf: Option<&'a Btf<'a>>,
    lines: &'a KernelLines<'k>,
    expand: Expand,
    /// Which hits count where a definition does not say it: as written, and as understood.
    filter: Option<(&'a str, Spanned<Filter>)>,
    /// All histograms so far.
    histograms: Vec<Hist>,
    /// How many functions the compiler has changed, so that their parameters are not known.
    changed: usize,
    found: Found,
}

const FILTER: Source<'static> = Source { name: "--filter", line: 1 };

/// Where a definition was written.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// A file, or an option.
    pub(crate) name: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl<'a, 'k> Reader<'a, 'k> {
    pub(crate) fn new(
        kernel: &'a Kernel,
        btf: Option<&'a Btf<'a>>,
        lines: &'a KernelLines<'k>,
        expand: Expand,
    ) -> Self {
        let found = Found { probes: Vec::new(), refused: Vec::new() };
        Self { kernel, btf, lines, expand, filter: None, histograms: Vec::new(), changed: 0, found }
    }

    /// Reads the filter of all definitions without one.
    pub(crate) fn filter(&mut self, text: &'a str) -> Result<()> {
        let filter = lang::parse_filter(text).map_err(|error| Self::mistake(text, FILTER, &error))?;
        self.filter = Some((text, filter));
        Ok(())
    }

    /// Reads one definition: a plain place, or a line of `kprobe_events`.
    pub(crate) fn read(&mut self, text: &str, source: Source<'_>) -> Result<()> {
        let Source { name, line } = source;
        let written = text.trim();
        if !written.contains(char::is_whitespace) && !written.starts_with("-:") {
            let spec: ProbeSpec = written.parse().with_context(|| format!("{name} {written}"))?;
            return self.plain(&spec).with_context(|| format!("{name} {written}"));
        }
        let statement = lang::parse(text).map_err(|error| Self::mistake(text, source, &error))?;
        match statement {
            Statement::Define(definition) => self.define(&definition, text, source),
            Statement::Remove(event) => {
                let before = self.found.probes.len();
                self.found.probes.retain(|asked| !is_named(asked, &event));
                if self.found.probes.len() == before {
                    bail!("{name}, line {line}: no event of that name was defined before: `{written}`");
                }
                Ok(())
            }
        }
    }

    /// Shows a mistake at once, in its line.
    fn mistake(text: &str, source: Source<'_>, error: &lang::Error) -> anyhow::Error {
        mistake::print(source.name, source.line, text, &error.into());
        anyhow::anyhow!("{} is not understood: {error}", source.name)
    }

    fn plain(&mut self, spec: &ProbeSpec) -> Result<()> {
        let returns = spec.returns();
        for place in self.places(spec)? {
            let (mut capture, style) = self.typed(&place, returns);
            let kind = if returns { ast::Kind::Return } else { ast::Kind::Instruction };
            self.add_filter(&mut capture, kind, &place)?;
            let written = self.filter.iter().map(|(_, filter)| format!("if {filter}")).collect();
            let mut asked = Asked::plain(place, trigger(returns, None)).found_by(spec);
            asked.plan.capture = capture;
            self.found.probes.push(Asked { style, written, ..asked });
        }
        Ok(())
    }

    fn define(&mut self, definition: &Definition, text: &str, source: Source<'_>) -> Result<()> {
        let returns = definition.kind == ast::Kind::Return;
        let (spec, places) =
            self.place(definition).map_err(|error| Self::misplaced(definition, text, source, error))?;
        let number = definition.hist.as_ref().map(|hist| self.histogram(&hist.value)).transpose()?;
        let filter = || self.filter.as_ref().map(|(_, filter)| filter.clone());
        let filtered = Definition { filter: definition.filter.clone().or_else(filter), ..definition.clone() };
        for place in places {
            let variables = || match &place {
                Place::Kernel { info, .. } => {
                    self.lines.variables_at(info.at).map_err(|error| format!("{error:#}"))
                }
                Place::Module { .. } | Place::Watch(_) => Ok(None),
            };
            let function = place.function();
            let site = Site { function, kernel: self.kernel, btf: self.btf, variables: &variables };
            let is_typed = definition.args.is_empty() && site.function.is_some();
            let (fields, call) = if is_typed { self.typed(&place, returns) } else { Default::default() };
            let capture = compile::capture(definition, &site, fields.fields);
            let mut capture = capture.map_err(|error| Self::mistake(text, source, &error))?;
            self.add_filter(&mut capture, definition.kind, &place)?;
            let histogram = compile::histogram(&filtered, &capture.fields);
            let histogram = histogram.map_err(|error| Self::mistake(text, source, &error))?;
            let name = &definition.name;
            let counted = number.map(|number| Counted {
                number,
                name: histogram_name(definition).unwrap_or_else(|| spec.to_string()),
            });
            let style = match event(name) {
                None if is_typed => call,
                named => Style::Event(named.unwrap_or_else(|| place.name())),
            };
            let max_active = definition.max_active.as_ref().map(|calls| calls.value);
            let filter = filtered.filter.iter().map(|filter| format!("if {filter}"));
            let written = filter.chain(definition.hist.iter().map(ToString::to_string)).collect();
            let mut asked = Asked::plain(place, trigger(returns, max_active)).found_by(&spec);
            asked.plan.capture = capture;
            if let Some(histogram) = histogram {
                asked.plan.action = Action::Histogram(histogram);
            }
            self.found.probes.push(Asked { style, counted, written, ..asked });
        }
        Ok(())
    }

    /// Gives what has no filter that of all.
    fn add_filter(&self, capture: &mut Capture, kind: ast::Kind, place: &Place) -> Result<()> {
        if let (None, Some((text, filter))) = (&capture.filter, &self.filter) {
            compile::filter(&filter.value, kind, capture).map_err(|error| {
                Self::mistake(text, FILTER, &error).context(format!("at {}", place.name()))
            })?;
        }
        Ok(())
    }

    /// The number of a histogram: one of its own, or that of an earlier one of the same name.
    fn histogram(&mut self, hist: &Hist) -> Result<usize> {
        let name = |hist: &Hist| hist.name.as_ref().map(|name| name.value.clone());
        let counts = |hist: &Hist| {
            let (keys, values) = (hist.keys.clone(), hist.values.clone());
            Hist { keys, values, ..Hist::default() }.to_string()
        };
        let earlier = self.histograms.iter().position(|own| name(own).is_some() && name(own) == name(hist));
        match earlier.and_then(|number| Some((number, self.histograms.get(number)?))) {
            Some((number, own)) if counts(own) == counts(hist) => Ok(number),
            Some((_, own)) => bail!(
                "the histogram `{}` is `{}` already, and not `{}`",
                name(hist).unwrap_or_default(),
                counts(own),
                counts(hist)
            ),
            None => {
                self.histograms.push(hist.clone());
                Ok(self.histograms.len() - 1)
            }
        }
    }

    /// The place of a definition, as the other parts of the program read it, and what it is in this kernel.
    fn place(&mut self, definition: &Definition) -> Result<(ProbeSpec, Vec<Place>)> {
        let returns = definition.kind == ast::Kind::Return;
        let spec: ProbeSpec = spec(&definition.place.value, returns).parse()?;
        let places = self.places(&spec)?;
        Ok((spec, places))
    }

    /// Shows at once, in its line, a place at which there can be no probe.
    fn misplaced(
        definition: &Definition,
        text: &str,
        source: Source<'_>,
        error: anyhow::Error,
    ) -> anyhow::Error {
        let span = definition.place.span.clone();
        // `r1a111 vfs_read`: the first word is a place, unless it is a command.
        let is_first = text.get(..span.start).is_some_and(|before| before.trim().is_empty());
        let hint = (is_first && !definition.args.is_empty()).then(|| {
            "a definition begins with a place, or with `p`, `f`, or `r` and a number of calls if you like"
                .to_owned()
        });
        mistake::print(
            source.name,
            source.line,
            text,
            &Mistake { span, message: format!("{error:#}"), hint },
        );
        error.context(format!("{} {text}", source.name))
    }

    fn places(&mut self, spec: &ProbeSpec) -> Result<Vec<Place>> {
        let is_line = matches!(spec.location(), Location::Line { .. });
        let resolved = match if is_line { self.lines.map()? } else { None } {
            Some(source) => resolve_in_source(spec, self.kernel, source)?,
            None => resolve(spec, self.kernel)?,
        };
        if !resolved.refused.is_empty() {
            self.found.refused.push((spec.to_string(), resolved.refused));
        }
        let other = resolved.places.iter().find(|place| spec.returns() && !place.is_entry());
        if let Some(place) = other {
            bail!("`{}` is no function's entry: only functions return", place.name());
        }
        Ok(resolved.places)
    }

    /// What a call's arguments or a return's value are by the kernel's own types, where it has them.
    fn typed(&mut self, place: &Place, returns: bool) -> (Capture, Style) {
        let plain = (Capture::default(), Style::Registers);
        let (Some(name), Some(btf)) = (place.function(), self.btf) else { return plain };
        let fields = match returns {
            false => typed::arguments(btf, name, self.expand),
            true => typed::return_value(btf, name, self.expand).map(|value| value.into_iter().collect()),
        };
        match fields {
            Ok(fields) => (Capture { fields, ..Capture::default() }, Style::Call),
            Err(reason) => {
                self.changed += usize::from(matches!(reason, NoArguments::Changed(_)));
                plain
            }
        }
    }

    /// All that was found, in the order in which it was asked for. Says what could not be shown as one may expect.
    pub(crate) fn finish(self) -> Found {
        if self.changed > 0 {
            note(format_args!(
                "the compiler has changed the parameters of {} of these functions (.isra, .constprop or .part in \
                 their names): their registers are shown",
                self.changed
            ));
        }
        self.found
    }
}

/// What the hits are of a probe of returns, or of passes.
fn trigger(returns: bool, max_active: Option<u32>) -> Trigger {
    if returns { Trigger::Return { max_active } } else { Trigger::Pass }
}

/// The place as the other parts of the program read it.
fn spec(place: &ast::Place, returns: bool) -> String {
    let place = match place {
        ast::Place::Symbol { module, symbol, offset } => {
            let module = module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
            let offset = if *offset == 0 { String::new() } else { format!("+{offset:#x}") };
            format!("{module}{symbol}{offset}")
        }
        ast::Place::Address(at) => format!("{at:#x}"),
        ast::Place::Line { of, line } => format!("{of}:{line}"),
    };
    format!("{place}{}", if returns { "%return" } else { "" })
}

/// `GRP/EVENT`, as far as given.
fn event(name: &EventName) -> Option<String> {
    let event = name.event.as_ref()?;
    Some(match &name.group {
        Some(group) => format!("{}/{}", group.value, event.value),
        None => event.value.clone(),
    })
}

/// What a histogram is called: as it says, or as its event.
fn histogram_name(definition: &Definition) -> Option<String> {
    let hist = definition.hist.as_ref()?;
    hist.value.name.as_ref().map(|name| name.value.clone()).or_else(|| event(&definition.name))
}

/// Whether a probe has this name; a group alone names all of it.
fn is_named(asked: &Asked, name: &EventName) -> bool {
    let Style::Event(own) = &asked.style else { return false };
    match (&name.group, event(name)) {
        (_, Some(full)) => *own == full || (name.group.is_none() && own.ends_with(&format!("/{full}"))),
        (Some(group), None) => own.starts_with(&format!("{}/", group.value)),
        (None, None) => false,
    }
}
