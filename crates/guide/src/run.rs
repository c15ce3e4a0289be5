//! `trysail guide`.

use crate::cases::{latency, mtls};
use crate::report::{Results, json, terminal};
use crate::stage::{Mode, Stage, StageError};
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
const MANIFESTS: [(&str, &str); 5] = [
    ("examples/guide/00-namespaces.yaml", include_str!("../../../examples/guide/00-namespaces.yaml")),
    ("examples/guide/10-bare.yaml", include_str!("../../../examples/guide/10-bare.yaml")),
    ("examples/guide/11-ambient-l4.yaml", include_str!("../../../examples/guide/11-ambient-l4.yaml")),
    ("examples/guide/20-outside.yaml", include_str!("../../../examples/guide/20-outside.yaml")),
    ("examples/guide/30-strict.yaml", include_str!("../../../examples/guide/30-strict.yaml")),
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

/// Runs the guide; 0 when every case ran and showed what it must.
pub fn run(args: Args) -> Result<i32, GuideError> {
    let began = Instant::now();
    let plan = plan(&args);
    let progress = Progress::new(2 + Mode::ALL.len() as u64 * (1 + u64::from(plan.rounds)));
    progress.step("starting a lab: two nodes, no mesh and ambient L4 side by side");
    let stage = Stage::open(manifests(), None).map_err(GuideError::Lab)?;
    let (mut mtls_seen, mut wrong) = (Vec::new(), Vec::new());
    for mode in Mode::ALL {
        progress.step(&format!("mtls: {}", mode.title()));
        let seen = mtls::run(&stage, mode).map_err(|e| GuideError::Case("mtls", e))?;
        wrong.extend(verdict::mtls(mode, &seen));
        mtls_seen.push((mode, seen));
    }
    progress.step("latency: warming up");
    let measured = latency::run(&stage, plan, |mode| progress.step(&format!("latency: {}", mode.title())));
    let latency = measured.map_err(|e| GuideError::Case("latency", e))?;
    for (mode, l) in latency.iter().filter(|(_, l)| !l.clean()) {
        wrong.push(format!("{}: answers other than 200: {:?}", mode.title(), l.codes));
    }
    drop(stage);
    progress.bar.finish_and_clear();
    let profile = if args.profile == Profile::Full { "full" } else { "quick" };
    let results = Results { profile, plan, mtls: mtls_seen, latency, wrong, seconds: began.elapsed().as_secs_f64() };
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
