//! A kernel's functions, with the rows of the ORC table for their instructions.

use probe_engine::addr::Gva;
use probe_engine::linux::orc::{OrcRow, OrcTable};
use probe_engine::linux::symbols::SymbolTable;
use std::ops::Range;

/// Instructions for which one row holds.
pub(super) struct Span {
    pub(super) range: Range<Gva>,
    pub(super) row: OrcRow,
}

/// What lies between two symbols.
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) start: Gva,
    pub(super) spans: Vec<Span>,
}

/// All functions of which something is known. A row holds for several of them where they begin alike.
pub(super) fn functions<'a>(orc: &OrcTable, symbols: &'a SymbolTable) -> Vec<Function<'a>> {
    let rows: Vec<(Gva, OrcRow)> = orc.rows().collect();
    let mut functions: Vec<Function<'_>> = Vec::new();
    let starts = symbols.text().filter(|symbol| symbol.is_placed());
    for symbol in starts {
        let Some(end) = symbols.end_of(symbol.at) else { continue };
        if functions.last().is_some_and(|last| last.start == symbol.at) {
            continue;
        }
        let first = rows.partition_point(|(at, _)| *at <= symbol.at).saturating_sub(1);
        let here = rows.get(first..).unwrap_or_default();
        let ends = here.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let spans = here.iter().zip(ends).take_while(|((at, _), _)| *at < end);
        let spans =
            spans.map(|((at, row), until)| Span { range: (*at).max(symbol.at)..until.min(end), row: *row });
        let spans = spans.filter(|span| !span.range.is_empty() && span.row != OrcRow::Undefined).collect();
        functions.push(Function { name: symbol.name, start: symbol.at, spans });
    }
    functions
}
