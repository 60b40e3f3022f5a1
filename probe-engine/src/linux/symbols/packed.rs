//! How a table of symbols is sent: column by column, by address, and without what follows from the rest.

use serde::{Deserialize, Serialize};

use super::{SymbolTable, SymbolTableBuilder};
use crate::addr::Gva;

/// The columns of a table.
#[derive(Serialize, Deserialize)]
pub(super) struct Packed {
    /// Bytes from each symbol to the one before it.
    steps: Vec<u64>,
    /// What each is, a character of `nm` for each.
    kinds: String,
    /// How long each name is, in bytes.
    lens: Vec<u16>,
    /// All names.
    names: String,
}

/// Columns that make no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a damaged table of symbols")]
pub(super) struct Damaged;

impl From<SymbolTable> for Packed {
    fn from(table: SymbolTable) -> Self {
        let mut last = 0;
        let mut step = |at: u64| at.wrapping_sub(std::mem::replace(&mut last, at));
        Self {
            steps: table.iter().map(|symbol| step(symbol.at.0)).collect(),
            kinds: table.iter().map(|symbol| symbol.kind).collect(),
            lens: table.iter().map(|symbol| symbol.name.len() as u16).collect(),
            names: table.iter().map(|symbol| symbol.name).collect(),
        }
    }
}

impl TryFrom<Packed> for SymbolTable {
    type Error = Damaged;

    fn try_from(packed: Packed) -> Result<Self, Damaged> {
        let Packed { steps, kinds, lens, names } = packed;
        let mut builder = SymbolTableBuilder::default();
        let mut kinds = kinds.chars();
        let mut names = names.as_str();
        let mut at = 0u64;
        if steps.len() != lens.len() {
            return Err(Damaged);
        }
        for (step, len) in steps.into_iter().zip(lens) {
            at = at.checked_add(step).ok_or(Damaged)?;
            let kind = kinds.next().and_then(|kind| kind.try_into().ok()).ok_or(Damaged)?;
            let (name, later) = names.split_at_checked(len.into()).ok_or(Damaged)?;
            builder.push(Gva(at), kind, name).map_err(|_| Damaged)?;
            names = later;
        }
        let is_all = kinds.next().is_none() && names.is_empty();
        is_all.then(|| builder.finish()).ok_or(Damaged)
    }
}
