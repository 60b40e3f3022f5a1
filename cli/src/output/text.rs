//! A run as text, from its hits to its table: the same whether it goes on or was recorded.

use super::event::EventText;
use super::graph::CallGraph;
use crate::demangled::demangled_place;
use crate::record::{Probe, Stack, Style};
use probe_engine::guest_text::Escaped;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Write};
use vmm::events::Event;

/// Writes hits as text.
#[derive(Default)]
pub(crate) struct Text {
    graph: CallGraph,
    /// Probes of functions whose names are not those of the source: with the names of the source.
    shown: HashMap<u32, Option<Probe>>,
}

impl Text {
    /// Writes what `probe` saw. `fields` is what it has read, each with its name.
    pub(crate) fn hit<'a, F, V>(
        &mut self,
        out: &mut impl Write,
        (event, probe): (&Event, &Probe),
        fields: F,
        stack: Option<&Stack>,
    ) -> io::Result<()>
    where
        F: Iterator<Item = (&'a str, V)> + Clone,
        V: Display,
    {
        let Self { graph, shown } = self;
        let probe = shown.entry(probe.id).or_insert_with(|| by_source(probe)).as_ref().unwrap_or(probe);
        if probe.style == Style::Graph {
            return graph.add(out, event, probe);
        }
        writeln!(out, "{}", EventText { event, probe, fields })?;
        stack.map_or(Ok(()), |stack| write!(out, "{stack}"))
    }

    /// There are no more hits.
    pub(crate) fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.graph.finish(out)
    }
}

/// The same probe, with what the source calls its function, where that is another name.
fn by_source(probe: &Probe) -> Option<Probe> {
    let place = Escaped(demangled_place(&probe.place)?.as_bytes()).to_string();
    Some(Probe { probe: probe.probe.replace(&probe.place, &place), place, ..probe.clone() })
}
