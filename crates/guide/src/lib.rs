//! The guide: runs the cases in a lab of its own, interleaved over the modes, and says what they show. Numbers become verdicts in pure
//! functions; nothing here is written by hand.

pub mod bench;
pub mod cases;
pub mod delivery;
pub mod report;
pub mod run;
pub mod stage;
pub mod verdict;

pub use run::{Args, GuideError, run};
