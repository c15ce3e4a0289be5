//! `trysail guide`.

use crate::cases::{canary, latency, mtls};
use crate::report::{Results, json, terminal};
use crate::stage::{Mode, Programs, Stage, StageError};
use crate::verdict;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trysail_lab::api::Manifest;

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
    /// Only these cases: mtls, latency, canary.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub cases: Vec<Case>,
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Plaintext, identities, the wire.
    Mtls,
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
const MANIFESTS: [(&str, &str); 11] = [
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
    let steps = 1
        + if asked(Case::Mtls) { count } else { 0 }
        + if asked(Case::Latency) { 1 + count * u64::from(plan.rounds) } else { 0 }
        + if asked(Case::Canary) { canary::PATHS.len() as u64 } else { 0 };
    let progress = Progress::new(steps);
    progress.step("starting a lab: two nodes, every way of meshing side by side");
    let stage = Stage::open(manifests(), Programs::default()).map_err(GuideError::Lab)?;
    let profile = if args.profile == Profile::Full { "full" } else { "quick" };
    let mut results = Results { profile, plan, ..Results::default() };
    if asked(Case::Mtls) {
        for mode in &modes {
            progress.step(&format!("mtls: {}", mode.title()));
            let seen = mtls::run(&stage, *mode).map_err(|e| GuideError::Case("mtls", e))?;
            results.wrong.extend(verdict::mtls(*mode, &seen));
            results.mtls.push((*mode, seen));
        }
    }
    if asked(Case::Latency) {
        progress.step("latency: warming up");
        let measured = latency::run(&stage, &modes, plan, |mode| progress.step(&format!("latency: {}", mode.title())));
        results.latency = measured.map_err(|e| GuideError::Case("latency", e))?;
        for (mode, l) in results.latency.iter().filter(|(_, l)| !l.clean()) {
            results.wrong.push(format!("{}: answers other than 200: {:?}", mode.title(), l.codes));
        }
    }
    if asked(Case::Canary) {
        for path in canary::PATHS {
            progress.step(&format!("canary: {}", path.title));
            let seen = canary::run(&stage, &path, CANARY_REQUESTS).map_err(|e| GuideError::Case("canary", e))?;
            results.wrong.extend(verdict::canary(path.title, &seen));
            results.canary.push((path, seen));
        }
    }
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
