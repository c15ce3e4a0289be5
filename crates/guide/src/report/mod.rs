//! The report: for the terminal and as JSON, and where that goes.

pub mod json;
pub mod out;
pub mod terminal;

use crate::cases::canary::Path;
use crate::cases::latency;
use crate::cases::retry;
use crate::cases::rollout::{self, Variant};
use crate::stage::Mode;
use crate::verdict::churn::Churn;
use crate::verdict::retry::Retry;
use crate::verdict::{Canary, Latency, Mtls, Netpol};

/// Everything that was measured.
#[derive(Default)]
pub struct Results {
    /// Profile.
    pub profile: &'static str,
    /// How latency was measured.
    pub plan: latency::Plan,
    /// How rollouts were measured.
    pub rollout_plan: rollout::Plan,
    /// How retries were measured.
    pub retry_plan: retry::Plan,
    /// Case `mtls`.
    pub mtls: Vec<(Mode, Mtls)>,
    /// Case `netpol`.
    pub netpol: Vec<(Mode, Netpol)>,
    /// The same with NetworkPolicies as Istio has them.
    pub netpol_istio: Vec<(Mode, Netpol)>,
    /// Case `latency`.
    pub latency: Vec<(Mode, Latency)>,
    /// Case `canary`.
    pub canary: Vec<(Path, Canary)>,
    /// Case `rollout`.
    pub rollout: Vec<(Mode, Variant, Churn)>,
    /// Case `retry`.
    pub retry: Vec<(Mode, Retry)>,
    /// Cases that could not be measured, and why.
    pub unmeasured: Vec<(&'static str, String)>,
    /// What is not as it must be.
    pub wrong: Vec<String>,
    /// Length of the whole run, seconds.
    pub seconds: f64,
}

impl Results {
    /// The baseline's latency.
    pub fn baseline(&self) -> Option<&Latency> {
        self.latency.iter().find(|(mode, _)| *mode == Mode::None).map(|(_, l)| l)
    }
}
