//! `trysail guide`.

use crate::cases::{canary, latency, mtls, netpol};
use crate::report::{Results, json, terminal};
use crate::stage::{Mode, Programs, Stage, StageError};
use crate::verdict::{self, Netpol};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trysail_lab::api::Manifest;
use trysail_lab::up::NetworkPolicyMode;

/// Arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder for report.json.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// quick takes about a minute; full has the reference's lengths.
    #[arg(long, value_enum, default_value = "quick")]
    pub profile: Profile,
    /// Rounds of each mode, instead of the profile's.
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Seconds of each round, instead of the profile's.
    #[arg(long)]
    pub seconds: Option<u32>,
    /// Only these modes: none, sidecar, ambient-l4, ambient-l7.
    #[arg(long, value_delimiter = ',')]
    pub modes: Vec<Mode>,
    /// Only these cases: mtls, netpol, latency, canary.
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
}

/// How long everything takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// About a minute.
    Quick,
    /// The reference's lengths.
    Full,
}

/// Why the guide could not finish.
#[derive(Debug, thiserror::Error)]
pub enum GuideError {
    /// A case could not be run.
    #[error("case {0} could not be run")]
    Case(&'static str, #[source] StageError),
    /// The lab.
    #[error("the lab could not be started")]
    Lab(#[source] StageError),
    /// The report cannot be written.
    #[error("{0}")]
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

fn plan(args: &Args) -> latency::Plan {
    let plan = match args.profile {
        Profile::Quick => latency::Plan { qps: 200, connections: 16, rounds: 4, seconds: 5 },
        Profile::Full => latency::Plan { qps: 200, connections: 16, rounds: 6, seconds: 10 },
    };
    let given = |own: Option<u32>, default| own.filter(|n| *n > 0).unwrap_or(default);
    latency::Plan { rounds: given(args.rounds, plan.rounds), seconds: given(args.seconds, plan.seconds), ..plan }
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

/// Runs the guide; 0 when every case ran and showed what it must.
pub fn run(args: Args) -> Result<i32, GuideError> {
    let began = Instant::now();
    let plan = plan(&args);
    let asked = |case| args.cases.is_empty() || args.cases.contains(&case);
    let modes: Vec<Mode> = Mode::ALL.into_iter().filter(|m| args.modes.is_empty() || args.modes.contains(m)).collect();
    let count = modes.len() as u64;
    // A second lab shows what the rules of the first do with Istio.
    let both = args.networkpolicy == NetworkPolicyMode::Trysail;
    let steps = 1
        + if asked(Case::Mtls) { count } else { 0 }
        + if asked(Case::Netpol) { 1 + u64::from(both) } else { 0 }
        + if asked(Case::Latency) { 1 + count * u64::from(plan.rounds) } else { 0 }
        + if asked(Case::Canary) { canary::PATHS.len() as u64 } else { 0 };
    let progress = Progress::new(steps);
    progress.step("starting a lab: two nodes, every way of meshing side by side");
    let programs = Programs { network_policy: args.networkpolicy, ..Programs::default() };
    let stage = Stage::open(manifests(), programs).map_err(GuideError::Lab)?;
    let profile = if args.profile == Profile::Full { "full" } else { "quick" };
    let results = Results { profile, plan, ..Results::default() };
    let mut run = Run { stage, modes, progress, results };
    if asked(Case::Mtls) {
        run.mtls()?;
    }
    if asked(Case::Latency) {
        run.latency()?;
    }
    if asked(Case::Canary) {
        run.canary()?;
    }
    if asked(Case::Netpol) {
        run.results.netpol = run.netpol("netpol", args.networkpolicy)?;
    }
    if asked(Case::Netpol) && both {
        let programs = Programs { network_policy: NetworkPolicyMode::Istio, ..Programs::default() };
        // One lab at a time.
        let Run { stage, modes, progress, results } = run;
        drop(stage);
        let stage = Stage::open(manifests(), programs).map_err(GuideError::Lab)?;
        run = Run { stage, modes, progress, results };
        run.results.netpol_istio = run.netpol("netpol as with Istio", NetworkPolicyMode::Istio)?;
    }
    let Run { stage, progress, mut results, .. } = run;
    drop(stage);
    progress.bar.finish_and_clear();
    results.seconds = began.elapsed().as_secs_f64();
    print!("{}", terminal::text(&results));
    if let Some(dir) = &args.out {
        let file = dir.join("report.json");
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&file, format!("{:#}\n", json::document(&results))));
        written.map_err(|e| GuideError::Out(file.clone(), e))?;
        println!("Report: {}", file.display());
    }
    Ok(i32::from(!results.wrong.is_empty()))
}

/// A run under way.
struct Run {
    stage: Stage,
    modes: Vec<Mode>,
    progress: Progress,
    results: Results,
}

impl Run {
    fn mtls(&mut self) -> Result<(), GuideError> {
        for mode in &self.modes {
            self.progress.step(&format!("mtls: {}", mode.title()));
            let seen = mtls::run(&self.stage, *mode).map_err(|e| GuideError::Case("mtls", e))?;
            self.results.wrong.extend(verdict::mtls(*mode, &seen));
            self.results.mtls.push((*mode, seen));
        }
        Ok(())
    }

    fn latency(&mut self) -> Result<(), GuideError> {
        self.progress.step("latency: warming up");
        let plan = self.results.plan;
        let step = |mode: Mode| self.progress.step(&format!("latency: {}", mode.title()));
        let measured = latency::run(&self.stage, &self.modes, plan, step);
        self.results.latency = measured.map_err(|e| GuideError::Case("latency", e))?;
        for (mode, l) in self.results.latency.iter().filter(|(_, l)| !l.clean()) {
            self.results.wrong.push(format!("{}: answers other than 200: {:?}", mode.title(), l.codes));
        }
        Ok(())
    }

    fn canary(&mut self) -> Result<(), GuideError> {
        for path in canary::PATHS {
            self.progress.step(&format!("canary: {}", path.title));
            let seen = canary::run(&self.stage, &path, CANARY_REQUESTS).map_err(|e| GuideError::Case("canary", e))?;
            self.results.wrong.extend(verdict::canary(path.title, &seen));
            self.results.canary.push((path, seen));
        }
        Ok(())
    }

    /// All modes at the same time: what is dropped is waited for.
    fn netpol(&mut self, title: &str, how: NetworkPolicyMode) -> Result<Vec<(Mode, Netpol)>, GuideError> {
        self.progress.step(title);
        let (stage, as_istio) = (&self.stage, how == NetworkPolicyMode::Istio);
        let seen: Vec<Result<Netpol, StageError>> = std::thread::scope(|scope| {
            let each: Vec<_> =
                self.modes.iter().map(|mode| scope.spawn(move || netpol::run(stage, *mode, as_istio))).collect();
            let gone = || StageError::Refused("a case ended without a result".to_owned());
            each.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(gone()))).collect()
        });
        let mut out = Vec::new();
        for (mode, seen) in self.modes.iter().zip(seen) {
            let seen = seen.map_err(|e| GuideError::Case("netpol", e))?;
            self.results.wrong.extend(verdict::netpol(*mode, &seen, as_istio));
            out.push((*mode, seen));
        }
        Ok(out)
    }
}
