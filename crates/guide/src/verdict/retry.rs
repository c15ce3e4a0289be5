//! Case `retry`: numbers to verdicts.

use super::churn::{self, Churn};
use serde_json::Value;
use std::collections::BTreeMap;

/// What was executed, by the collector's count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Orders by name that were executed at least once.
    pub orders: u64,
    /// Orders that were executed more than once, with how often.
    pub twice: BTreeMap<String, u64>,
}

impl Executed {
    /// Reads the collector's answer to `GET /dupes`.
    pub fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let twice = value.get("dupes")?.as_object()?.iter().map(|(id, times)| Some((id.clone(), times.as_u64()?)));
        Some(Self { orders: value.get("total_ids")?.as_u64()?, twice: twice.collect::<Option<_>>()? })
    }
}

/// What was measured in one mode.
#[derive(Clone, Default)]
pub struct Retry {
    /// The load, and what became of each order.
    pub churn: Churn,
    /// What was executed.
    pub executed: Executed,
    /// The control run.
    pub control: Control,
}

/// A run in which orders are executed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// There is none: nothing on the way can send an order again.
    #[default]
    NoRetries,
    /// What was executed in it.
    Seen(Executed),
    /// It could not be made, and why.
    Failed(String),
}

impl Control {
    /// What was executed in it, if it was made.
    pub fn seen(&self) -> Option<&Executed> {
        match self {
            Self::Seen(executed) => Some(executed),
            Self::NoRetries | Self::Failed(_) => None,
        }
    }
}

/// What keeps the case from being a measurement: failed and doubled orders do not, they are what it measures.
pub fn unmeasured(seen: &Retry) -> Vec<String> {
    let mut wrong = churn::unmeasured(&seen.churn);
    if seen.executed.orders < seen.churn.answered() {
        wrong.push(format!(
            "{} orders were answered and only {} were counted: the count cannot be trusted",
            seen.churn.answered(),
            seen.executed.orders
        ));
    }
    match &seen.control {
        Control::Seen(control) if control.twice.is_empty() => wrong
            .push("the control run, in which orders are executed twice, shows none: the count sees nothing".to_owned()),
        Control::Failed(why) => wrong.push(format!("without a control run the count proves nothing: {why}")),
        Control::Seen(_) | Control::NoRetries => {}
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Evidence;
    use crate::verdict::churn::Cycle;

    #[test]
    fn the_collectors_answer_is_read_as_it_is_written() {
        let text = r#"{"total_ids": 3, "dupe_count": 1, "dupes": {"r-2": 2}}"#;
        let seen = Executed::from_json(text).unwrap();
        assert_eq!((seen.orders, seen.twice), (3, BTreeMap::from([("r-2".to_owned(), 2)])));
        for text in ["", "{}", r#"{"total_ids": 3}"#, r#"{"total_ids": 1, "dupes": {"a": "b"}}"#] {
            assert_eq!(Executed::from_json(text), None, "{text}");
        }
    }

    #[test]
    fn a_count_that_misses_orders_or_the_controls_doubles_is_no_measurement() {
        let twice = || Executed { orders: 9, twice: BTreeMap::from([("c-1".to_owned(), 2)]) };
        let good = || Retry {
            churn: Churn {
                cycles: vec![Cycle { at_s: 0.0, done_s: Some(1.0) }],
                codes: BTreeMap::from([(201, 9), (503, 1)]),
                evidence: Evidence { received: 9, ..Evidence::default() },
                ..Churn::default()
            },
            executed: twice(),
            control: Control::Seen(twice()),
        };
        assert_eq!((good().churn.failed(), unmeasured(&good())), (1, Vec::<String>::new()));
        let wrong = |control: Control| unmeasured(&Retry { control, ..good() }).len();
        assert_eq!((wrong(Control::NoRetries), wrong(Control::Failed("x".to_owned()))), (0, 1));
        assert_eq!(wrong(Control::Seen(Executed { orders: 9, ..Executed::default() })), 1);
        assert_eq!(unmeasured(&Retry { executed: Executed { orders: 8, ..twice() }, ..good() }).len(), 1);
    }
}
