//! What an order came to that was imposed.

use probe_engine::probe::turns::{Loss, TurnsReport};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A line of type `order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "order")]
pub(crate) struct OrderLine {
    /// How many hits it had.
    pub(crate) turns: u64,
    /// How many came in order.
    pub(crate) taken: u64,
    /// Why no more did, where that is known.
    pub(crate) lost: Option<Loss>,
}

impl From<TurnsReport> for OrderLine {
    fn from(TurnsReport { turns, taken, lost }: TurnsReport) -> Self {
        Self { turns, taken, lost }
    }
}

/// As a sentence.
impl fmt::Display for OrderLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turns, taken, lost } = self;
        write!(f, "the order was imposed: {taken} of {turns} hits came in it")?;
        match lost {
            None => Ok(()),
            Some(Loss::Overdue) => {
                write!(f, "; the next one did not come in time, while another task waited for it")
            }
            Some(Loss::OtherProbe) => write!(f, "; a task came to another probe than it had"),
            Some(Loss::TooManyWait) => write!(f, "; more tasks would have had to wait than can"),
            Some(Loss::TooManyTasks) => write!(f, "; there are more tasks than are known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_became_of_an_order() {
        let said = |lost| OrderLine { turns: 5, taken: 3, lost }.to_string();
        assert_eq!(said(None), "the order was imposed: 3 of 5 hits came in it");
        let lost = [Loss::Overdue, Loss::OtherProbe, Loss::TooManyWait, Loss::TooManyTasks];
        assert!(lost.into_iter().all(|lost| said(Some(lost)).contains("hits came in it; ")));
    }
}
