//! `trysail guide`.

use crate::cases::rollout::Variant;
use crate::cases::{canary, latency, mtls, netpol, retry, rollout};
use crate::report::out::Out;
use crate::report::{Results, json, terminal};
use crate::stage::{Mode, Programs, Stage, StageError};
use crate::verdict::{self, Netpol};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trysail_base::log::chain;
use trysail_lab::api::Manifest;
use trysail_lab::up::NetworkPolicyMode;

/// Arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder for report.json.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// quick takes a few minutes; full has the reference's lengths.
    #[arg(long, value_enum, default_value = "quick")]
    pub profile: Profile,
    /// Rounds of each mode, instead of the profile's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Seconds of each round and of each load, instead of the profile's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Only these modes: none, sidecar, ambient-l4, ambient-l7.
    #[arg(long, value_delimiter = ',')]
    pub modes: Vec<Mode>,
    /// Only these cases: mtls, netpol, latency, canary, rollout, retry.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub cases: Vec<Case>,
    /// How NetworkPolicies act on pods of the mesh; `trysail` shows Istio's way beside its own.
    #[arg(long, value_enum, default_value_t)]
    pub networkpolicy: NetworkPolicyMode,
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Plaintext, identities, the wire.
    Mtls,
    /// NetworkPolicies as they are.
    Netpol,
    /// Open loop at a fixed rate.
    Latency,
    /// Weights between two versions.
    Canary,
    /// Requests while a Deployment is restarted over and over.
    Rollout,
    /// Orders that must not be executed twice, meanwhile.
    Retry,
}

impl Case {
    /// All, in the order in which they are run.
    const ALL: [Case; 6] = [Case::Mtls, Case::Latency, Case::Canary, Case::Rollout, Case::Retry, Case::Netpol];

    /// Key in report.json.
    fn key(self) -> &'static str {
        match self {
            Self::Mtls => "mtls",
            Self::Netpol => "netpol",
            Self::Latency => "latency",
            Self::Canary => "canary",
            Self::Rollout => "rollout",
            Self::Retry => "retry",
        }
    }
}

/// How long everything takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// A few minutes.
    Quick,
    /// The reference's lengths.
    Full,
}

/// Why the guide could not be run.
#[derive(Debug, thiserror::Error)]
pub enum GuideError {
    /// A measurement could not be made.
    #[error("{0} could not be measured")]
    Case(&'static str, #[source] StageError),
    /// The lab.
    #[error("the lab could not be started")]
    Lab(#[source] StageError),
    /// The report cannot be written.
    #[error("{}: no report can be written there: name a folder that can be written to, on a disk with some MiB left, with --out", .0.display())]
    Out(PathBuf, #[source] std::io::Error),
}

/// Files and texts.
const MANIFESTS: [(&str, &str); 12] = [
    ("examples/guide/00-namespaces.yaml", include_str!("../../../examples/guide/00-namespaces.yaml")),
    ("examples/guide/10-bare.yaml", include_str!("../../../examples/guide/10-bare.yaml")),
    ("examples/guide/11-ambient-l4.yaml", include_str!("../../../examples/guide/11-ambient-l4.yaml")),
    ("examples/guide/12-sidecar.yaml", include_str!("../../../examples/guide/12-sidecar.yaml")),
    ("examples/guide/13-ambient-l7.yaml", include_str!("../../../examples/guide/13-ambient-l7.yaml")),
    ("examples/guide/20-outside.yaml", include_str!("../../../examples/guide/20-outside.yaml")),
    ("examples/guide/30-strict.yaml", include_str!("../../../examples/guide/30-strict.yaml")),
    ("examples/guide/40-canary-ambient-l4.yaml", include_str!("../../../examples/guide/40-canary-ambient-l4.yaml")),
    ("examples/guide/41-canary-ambient-l7.yaml", include_str!("../../../examples/guide/41-canary-ambient-l7.yaml")),
    ("examples/guide/42-canary-sidecar.yaml", include_str!("../../../examples/guide/42-canary-sidecar.yaml")),
    ("examples/guide/50-edge.yaml", include_str!("../../../examples/guide/50-edge.yaml")),
    ("examples/guide/60-guarded.yaml", include_str!("../../../examples/guide/60-guarded.yaml")),
];

/// The guide's own manifests.
pub fn manifests() -> Vec<Manifest> {
    MANIFESTS.iter().map(|(file, text)| Manifest { file: (*file).to_owned(), text: (*text).to_owned() }).collect()
}

fn latency_plan(args: &Args) -> latency::Plan {
    let (rounds, seconds) = match args.profile {
        Profile::Quick => (4, 5),
        Profile::Full => (6, 10),
    };
    let (rounds, seconds) = (args.rounds.unwrap_or(rounds), args.seconds.unwrap_or(seconds));
    latency::Plan { qps: 200, connections: 16, rounds, seconds }
}

fn rollout_plan(args: &Args) -> rollout::Plan {
    let (baseline, hardened) = match args.profile {
        Profile::Quick => (15, 20),
        Profile::Full => (600, 600),
    };
    let (baseline_s, hardened_s) = (args.seconds.unwrap_or(baseline), args.seconds.unwrap_or(hardened));
    rollout::Plan { qps: 100, connections: 16, baseline_s, hardened_s }
}

fn retry_plan(args: &Args) -> retry::Plan {
    let seconds = match args.profile {
        Profile::Quick => 12,
        Profile::Full => 300,
    };
    retry::Plan { qps: 20, connections: 8, seconds: args.seconds.unwrap_or(seconds), control_s: 4 }
}

/// A bar on a terminal; a line a step where there is none.
struct Progress {
    bar: ProgressBar,
    plain: bool,
}

impl Progress {
    fn new(steps: u64) -> Self {
        let plain = !std::io::IsTerminal::is_terminal(&std::io::stderr());
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(steps) };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, plain }
    }

    fn step(&self, what: &str) {
        if self.plain {
            eprintln!("… {what}");
        }
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }
}

/// Requests of each way of the case `canary`.
const CANARY_REQUESTS: u32 = 400;

/// Runs the guide; 0 when every case could be measured and showed what it must.
///
/// # Errors
/// When no lab can be started, or the report cannot be written.
pub fn run(args: Args) -> Result<i32, GuideError> {
    let began = Instant::now();
    let out =
        args.out.as_deref().map(|dir| Out::check(dir).map_err(|e| GuideError::Out(dir.to_owned(), e))).transpose()?;
    let cases: Vec<Case> = Case::ALL.into_iter().filter(|c| args.cases.is_empty() || args.cases.contains(c)).collect();
    let modes: Vec<Mode> = Mode::ALL.into_iter().filter(|m| args.modes.is_empty() || args.modes.contains(m)).collect();
    let profile = if args.profile == Profile::Full { "full" } else { "quick" };
    let (plan, rollout_plan, retry_plan) = (latency_plan(&args), rollout_plan(&args), retry_plan(&args));
    let results = Results { profile, plan, rollout_plan, retry_plan, ..Results::default() };
    let steps = 1 + cases.iter().map(|case| steps(*case, &args, modes.len() as u64, &results)).sum::<u64>();
    let progress = Progress::new(steps);
    progress.step("starting a lab: two nodes, every way of meshing side by side");
    let mut run = Run { stage: Some(open(args.networkpolicy)?), modes, progress, results };
    for case in cases {
        // What one case cannot measure takes nothing away from the others.
        if let Err(error) = run.case(case, args.networkpolicy) {
            run.results.unmeasured.push((case.key(), chain(&error)));
        }
    }
    let Run { stage, progress, mut results, .. } = run;
    drop(stage);
    progress.bar.finish_and_clear();
    results.seconds = began.elapsed().as_secs_f64();
    print!("{}", terminal::text(&results));
    if let Some((out, dir)) = out.zip(args.out) {
        let written = out.write(&json::document(&results)).map_err(|e| GuideError::Out(dir, e))?;
        println!("Report: {}", written.file.display());
        if let Some(kept) = written.kept {
            println!("{} holds more and was kept.", kept.display());
        }
    }
    Ok(i32::from(!results.wrong.is_empty() || !results.unmeasured.is_empty()))
}

fn open(network_policy: NetworkPolicyMode) -> Result<Stage, GuideError> {
    Stage::open(manifests(), Programs { network_policy, ..Programs::default() }).map_err(GuideError::Lab)
}

/// Steps of a case, for the progress that is shown.
fn steps(case: Case, args: &Args, modes: u64, results: &Results) -> u64 {
    match case {
        Case::Mtls => modes,
        Case::Netpol => 1 + u64::from(args.networkpolicy == NetworkPolicyMode::Trysail),
        Case::Latency => 1 + modes * u64::from(results.plan.rounds),
        Case::Canary => canary::PATHS.len() as u64,
        Case::Retry => modes,
        Case::Rollout => modes * Variant::ALL.len() as u64,
    }
}

/// A run under way.
struct Run {
    /// The lab; none when it could not be started again.
    stage: Option<Stage>,
    modes: Vec<Mode>,
    progress: Progress,
    results: Results,
}

impl Run {
    fn case(&mut self, case: Case, how: NetworkPolicyMode) -> Result<(), GuideError> {
        match case {
            Case::Mtls => self.mtls(),
            Case::Latency => self.latency(),
            Case::Canary => self.canary(),
            Case::Rollout => self.rollout(),
            Case::Retry => self.retry(),
            Case::Netpol => {
                self.results.netpol = self.netpol("netpol", how)?;
                if how == NetworkPolicyMode::Trysail {
                    // A second lab, after the first, shows what the rules of the first do with Istio.
                    self.stage = None;
                    self.stage = Some(open(NetworkPolicyMode::Istio)?);
                    self.results.netpol_istio = self.netpol("netpol as with Istio", NetworkPolicyMode::Istio)?;
                }
                Ok(())
            }
        }
    }

    fn stage(&self) -> Result<&Stage, GuideError> {
        let gone = || GuideError::Lab(StageError::Refused("it is not running".to_owned()));
        self.stage.as_ref().ok_or_else(gone)
    }

    fn rollout(&mut self) -> Result<(), GuideError> {
        for variant in Variant::ALL {
            let step = |mode: Mode| self.progress.step(&format!("rollout: {}, {}", mode.title(), variant.key()));
            let measured = rollout::run(self.stage()?, &self.modes, variant, self.results.rollout_plan, step);
            for rollout::Measured { mode, outcome } in measured.map_err(|e| GuideError::Case(variant.key(), e))? {
                let why = match outcome {
                    Ok(seen) => {
                        let why = verdict::churn::unmeasured(&seen);
                        self.results.rollout.push((mode, variant, seen));
                        why
                    }
                    Err(error) => vec![chain(&error)],
                };
                self.unmeasured(Case::Rollout, &format!("{}, {}", mode.title(), variant.key()), why);
            }
        }
        Ok(())
    }

    fn retry(&mut self) -> Result<(), GuideError> {
        let step = |mode: Mode| self.progress.step(&format!("retry: {}", mode.title()));
        let measured = retry::run(self.stage()?, &self.modes, self.results.retry_plan, step);
        for retry::Measured { mode, outcome } in measured.map_err(|e| GuideError::Case("a mode", e))? {
            let why = match outcome {
                Ok(seen) => {
                    let why = verdict::retry::unmeasured(&seen);
                    self.results.retry.push((mode, seen));
                    why
                }
                Err(error) => vec![chain(&error)],
            };
            self.unmeasured(Case::Retry, mode.title(), why);
        }
        Ok(())
    }

    fn unmeasured(&mut self, case: Case, title: &str, why: Vec<String>) {
        self.results.unmeasured.extend(why.into_iter().map(|why| (case.key(), format!("{title}: {why}"))));
    }

    fn mtls(&mut self) -> Result<(), GuideError> {
        for mode in &self.modes {
            self.progress.step(&format!("mtls: {}", mode.title()));
            let seen = mtls::run(self.stage()?, *mode).map_err(|e| GuideError::Case(mode.title(), e))?;
            self.results.wrong.extend(verdict::mtls(*mode, &seen));
            self.results.mtls.push((*mode, seen));
        }
        Ok(())
    }

    fn latency(&mut self) -> Result<(), GuideError> {
        self.progress.step("latency: warming up");
        let plan = self.results.plan;
        let step = |mode: Mode| self.progress.step(&format!("latency: {}", mode.title()));
        let measured = latency::run(self.stage()?, &self.modes, plan, step);
        self.results.latency = measured.map_err(|e| GuideError::Case("a mode", e))?;
        for (mode, l) in self.results.latency.iter().filter(|(_, l)| !l.clean()) {
            self.results.wrong.push(format!("{}: answers other than 200: {:?}", mode.title(), l.codes));
        }
        Ok(())
    }

    fn canary(&mut self) -> Result<(), GuideError> {
        for path in canary::PATHS {
            self.progress.step(&format!("canary: {}", path.title));
            let seen = canary::run(self.stage()?, &path, CANARY_REQUESTS);
            let seen = seen.map_err(|e| GuideError::Case(path.title, e))?;
            self.results.wrong.extend(verdict::canary(path.title, &seen));
            self.results.canary.push((path, seen));
        }
        Ok(())
    }

    /// All modes at the same time: what is dropped is waited for.
    fn netpol(&mut self, title: &str, how: NetworkPolicyMode) -> Result<Vec<(Mode, Netpol)>, GuideError> {
        self.progress.step(title);
        let (stage, as_istio) = (self.stage()?, how == NetworkPolicyMode::Istio);
        let seen: Vec<Result<Netpol, StageError>> = std::thread::scope(|scope| {
            let each: Vec<_> =
                self.modes.iter().map(|mode| scope.spawn(move || netpol::run(stage, *mode, as_istio))).collect();
            let gone = || StageError::Refused("a case ended without a result".to_owned());
            each.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(gone()))).collect()
        });
        let mut out = Vec::new();
        for (mode, seen) in self.modes.iter().zip(seen) {
            let seen = seen.map_err(|e| GuideError::Case(mode.title(), e))?;
            self.results.wrong.extend(verdict::netpol(*mode, &seen, as_istio));
            out.push((*mode, seen));
        }
        Ok(out)
    }
}
