//! A run as text, from its hits to its table: the same whether it goes on or was recorded.

use super::event::EventText;
use super::graph::CallGraph;
use crate::record::{Probe, Stack, Style};
use std::fmt::Display;
use std::io::{self, Write};
use vmm::events::Event;

/// Writes hits as text.
#[derive(Default)]
pub(crate) struct Text {
    graph: CallGraph,
}

impl Text {
    /// Writes what `probe` saw. `fields` is what it has read, each with its name.
    pub(crate) fn hit<'a, F, V>(
        &mut self,
        out: &mut impl Write,
        (event, probe): (&'a Event, &'a Probe),
        fields: F,
        stack: Option<&Stack>,
    ) -> io::Result<()>
    where
        F: Iterator<Item = (&'a str, V)> + Clone,
        V: Display,
    {
        if probe.style == Style::Graph {
            return self.graph.add(out, event, probe);
        }
        writeln!(out, "{}", EventText { event, probe, fields })?;
        stack.map_or(Ok(()), |stack| write!(out, "{stack}"))
    }

    /// There are no more hits.
    pub(crate) fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.graph.finish(out)
    }
}
