//! Numbers to verdicts. Pure.

pub mod churn;
pub mod retry;

use crate::stage::Mode;
use serde::Serialize;
use trysail_load::histogram::Histogram;

/// What the case `mtls` measured in one mode; the keys are those of report.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mtls {
    /// A plaintext call from outside the mesh got no answer.
    pub plaintext_blocked: bool,
    /// Status of a call through the Service from inside.
    pub in_mesh_code: i32,
    /// A marker in the payload could be read on the fabric.
    pub marker_on_wire: bool,
    /// Frames that crossed the fabric while the marker was looked for.
    pub frames: u64,
    /// The caller's identity as the called side's proxy proved it.
    pub client_id: Option<String>,
    /// The called identity.
    pub server_id: Option<String>,
    /// Both ends' certificates lead to one root.
    pub same_root: Option<bool>,
}

/// What is wrong with the evidence; empty when it is what the mode demands.
pub fn mtls(mode: Mode, seen: &Mtls) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut demand = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("{}: {what}", mode.title()));
        }
    };
    demand(seen.in_mesh_code == 200, &format!("a call through the Service answered {}, not 200", seen.in_mesh_code));
    demand(seen.frames > 0, "nothing crossed the fabric while it was watched");
    match mode {
        Mode::None => demand(
            seen.marker_on_wire,
            "the payload's marker was not found on the fabric, so the check itself does not work",
        ),
        Mode::Sidecar | Mode::AmbientL4 | Mode::AmbientL7 => {
            demand(seen.plaintext_blocked, "a plaintext call was answered although STRICT is demanded");
            demand(!seen.marker_on_wire, "the payload could be read on the fabric");
            let own = format!("spiffe://cluster.local/ns/{}/sa/default", mode.namespace());
            demand(
                seen.client_id.as_ref() == Some(&own),
                &format!("the caller was proven to be {:?}, not {own}", seen.client_id),
            );
            demand(
                seen.server_id.as_ref() == Some(&own),
                &format!("the called side was proven to be {:?}, not {own}", seen.server_id),
            );
            demand(seen.same_root == Some(true), "the two ends' certificates do not lead to one root");
        }
    }
    wrong
}

/// Whether something answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// It answers.
    Allowed,
    /// It does not.
    Blocked,
}

impl Reach {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Allowed => Self::Blocked,
            Self::Blocked => Self::Allowed,
        }
    }

    /// In a table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Blocked => "blocked",
        }
    }
}

/// What the case `netpol` measured in one mode; the keys are those of report.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Netpol {
    /// The application's port under rules that admit it and nothing else.
    pub app_port_only: Reach,
    /// The same with the tunnel's port admitted too.
    pub with_15008: Reach,
    /// A pod that runs, under rules that admit another port: blocked when they act on it.
    pub retroactive: Reach,
    /// Another port of the application once the tunnel's port is admitted.
    pub other_port_after_15008: Reach,
}

impl Netpol {
    /// Whether rules work as they are written: for the ports that they name, and no other.
    pub fn works_as_is(&self) -> bool {
        (self.app_port_only, self.retroactive, self.other_port_after_15008)
            == (Reach::Allowed, Reach::Blocked, Reach::Blocked)
    }
}

/// What is wrong with the evidence. `as_istio`: NetworkPolicies act on pods of the mesh as with Istio.
pub fn netpol(mode: Mode, seen: &Netpol, as_istio: bool) -> Vec<String> {
    let tunnelled = matches!(mode, Mode::AmbientL4 | Mode::AmbientL7);
    let (shut, open) = (Reach::Blocked, Reach::Allowed);
    // With Istio, what a proxy holds open outlives the rules: nothing is demanded then.
    let seen = &Netpol { retroactive: if as_istio { shut } else { seen.retroactive }, ..*seen };
    let wanted = match as_istio && tunnelled {
        true => Netpol { app_port_only: shut, with_15008: open, retroactive: shut, other_port_after_15008: open },
        false => Netpol { app_port_only: open, with_15008: open, retroactive: shut, other_port_after_15008: shut },
    };
    let how = if as_istio { ", as with Istio" } else { "" };
    let title = mode.title();
    if *seen == wanted { Vec::new() } else { vec![format!("{title}{how}: NetworkPolicies: {seen:?}, not {wanted:?}")] }
}

/// What the case `canary` measured on one way; the keys are those of report.json.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Canary {
    /// The share that the rule demands of the new version.
    pub wanted: f64,
    /// Answers.
    pub requests: u64,
    /// Answers of the new version.
    pub new: u64,
    /// Answers that were neither version's.
    pub failed: u64,
    /// Whether something on the way understands HTTP.
    pub routed: bool,
}

/// Standard deviations within which a share is taken for the one that was wanted: one run in 16,000 lies outside by chance.
const DEVIATIONS: f64 = 4.0;

impl Canary {
    /// The share of the new version.
    pub fn observed(&self) -> f64 {
        self.new as f64 / (self.requests.max(1)) as f64
    }

    /// How far a share may lie from the wanted one by chance (binomial).
    pub fn margin(&self) -> f64 {
        DEVIATIONS * (self.wanted * (1.0 - self.wanted) / (self.requests.max(1)) as f64).sqrt()
    }

    /// Whether the rule was followed.
    pub fn followed(&self) -> bool {
        (self.observed() - self.wanted).abs() <= self.margin()
    }
}

/// What is wrong with a way's share; empty when it is what the way demands.
pub fn canary(title: &str, seen: &Canary) -> Vec<String> {
    let mut wrong = Vec::new();
    if seen.requests == 0 || seen.failed > 0 {
        wrong.push(format!(
            "canary {title}: {} of {} requests were not answered by either version",
            seen.failed, seen.requests
        ));
    }
    if seen.followed() != seen.routed {
        let what = if seen.routed {
            "the weights were not followed"
        } else {
            "the weights had an effect where nothing reads HTTP"
        };
        wrong.push(format!("canary {title}: {what}: {:.3} instead of {:.3}", seen.observed(), seen.wanted));
    }
    wrong
}

/// What the case `latency` measured in one mode.
#[derive(Clone, Default)]
pub struct Latency {
    /// Every request of every round.
    pub histogram: Histogram,
    /// P50 of each round, milliseconds.
    pub p50_rounds: Vec<f64>,
    /// Answers by status.
    pub codes: std::collections::BTreeMap<i32, u64>,
    /// Connections opened.
    pub sockets: u64,
}

impl Latency {
    /// The lowest and the highest P50 of a round.
    pub fn spread(&self) -> (f64, f64) {
        let low = self.p50_rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.p50_rounds.iter().copied().fold(0.0, f64::max);
        (if low.is_finite() { low } else { 0.0 }, high)
    }

    /// Whether every request was answered 200.
    pub fn clean(&self) -> bool {
        !self.codes.is_empty() && self.codes.keys().all(|code| *code == 200)
    }
}

/// P50 over the baseline's, milliseconds; negative when it is below.
pub fn overhead(baseline: &Latency, measured: &Latency) -> f64 {
    measured.histogram.percentile_ms(50.0) - baseline.histogram.percentile_ms(50.0)
}

/// Whether a difference stands out of the rounds' spread: the ranges of P50 do not overlap.
pub fn stands_out(baseline: &Latency, measured: &Latency) -> bool {
    let ((low_a, high_a), (low_b, high_b)) = (baseline.spread(), measured.spread());
    low_b > high_a || low_a > high_b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Mtls {
        let id = Some("spiffe://cluster.local/ns/ambient-l4/sa/default".to_owned());
        Mtls {
            plaintext_blocked: true,
            in_mesh_code: 200,
            marker_on_wire: false,
            frames: 9,
            client_id: id.clone(),
            server_id: id,
            same_root: Some(true),
        }
    }

    #[test]
    fn every_part_of_the_evidence_can_fail() {
        assert!(mtls(Mode::AmbientL4, &good()).is_empty());
        let bad = [
            Mtls { plaintext_blocked: false, ..good() },
            Mtls { in_mesh_code: 503, ..good() },
            Mtls { marker_on_wire: true, ..good() },
            Mtls { frames: 0, ..good() },
            Mtls { client_id: None, ..good() },
            Mtls { server_id: Some("spiffe://cluster.local/ns/other/sa/default".into()), ..good() },
            Mtls { same_root: Some(false), ..good() },
        ];
        for seen in bad {
            assert_eq!(mtls(Mode::AmbientL4, &seen).len(), 1, "{seen:?}");
        }
        assert_eq!(mtls(Mode::None, &good()).len(), 1, "a marker that is not found without mesh means a blind check");
    }

    #[test]
    fn a_share_is_followed_within_chance_alone() {
        let seen = |new, routed| Canary { wanted: 0.1, requests: 400, new, failed: 0, routed };
        assert!(canary("x", &seen(44, true)).is_empty());
        assert_eq!(canary("x", &seen(90, true)).len(), 1);
        assert!(canary("x", &seen(200, false)).is_empty());
        assert_eq!(canary("x", &seen(40, false)).len(), 1);
        assert_eq!(canary("x", &Canary { failed: 1, ..seen(44, true) }).len(), 1);
    }

    #[test]
    fn a_difference_stands_out_only_beyond_the_spread() {
        let with = |rounds: &[f64]| Latency { p50_rounds: rounds.to_vec(), ..Latency::default() };
        assert!(stands_out(&with(&[1.0, 1.2]), &with(&[1.3, 1.4])));
        assert!(!stands_out(&with(&[1.0, 1.35]), &with(&[1.3, 1.4])));
    }
}
