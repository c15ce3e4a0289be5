//! `trysail bench`: what each way of meshing costs, as ratios to the bare network in the same run. Whatever is compared takes turns.

use crate::run::{GuideError, manifests};
use crate::stage::{Mode, Programs, Stage, StageError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use trysail_lab::account::Account;
use trysail_lab::api::{Manifest, Request};
use trysail_lab::output::table;
use trysail_load::result::Summary;

/// Arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Folder for bench.json.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Rounds of everything.
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    pub seconds: u32,
    /// Another Istio-compatible node proxy, measured in the same run.
    #[arg(long)]
    pub l4_proxy: Option<PathBuf>,
    /// A haproxy, measured in the same run as one plaintext hop beside the gateway.
    #[arg(long)]
    pub haproxy: Option<PathBuf>,
}

/// What is measured: a name, a unit, the load generator's flags, and how its result becomes a number.
struct Measure {
    name: &'static str,
    unit: &'static str,
    flags: &'static [&'static str],
    path: &'static str,
    value: fn(&Summary) -> f64,
    /// Whether less is better.
    less: bool,
}

/// How long after its start a process is idle.
const SETTLED: Duration = Duration::from_secs(7);
/// Bytes of one answer in the throughput measurement.
const BULK: f64 = 33_554_432.0;

const MEASURES: [Measure; 4] = [
    Measure {
        name: "requests, 16 connections",
        unit: "1/s",
        flags: &["-qps", "0", "-c", "16"],
        path: "/",
        value: Summary::qps,
        less: false,
    },
    Measure {
        name: "new connections, 16 at a time",
        unit: "1/s",
        // A fixed number: the client's ports are not to run out.
        flags: &["-qps", "0", "-c", "16", "-keepalive=false", "-n", "3000"],
        path: "/",
        value: Summary::qps,
        less: false,
    },
    Measure {
        name: "one stream",
        unit: "Gbit/s",
        flags: &["-qps", "0", "-c", "1", "-timeout", "30s"],
        path: "/?size=33554432",
        value: |s| s.qps() * BULK * 8.0 / 1e9,
        less: false,
    },
    Measure {
        name: "P50 at 200/s, 16 connections",
        unit: "ms",
        flags: &["-qps", "200", "-c", "16"],
        path: "/",
        value: |s| s.histogram.percentile_ms(50.0),
        less: true,
    },
];

/// One way through a lab, with its numbers by measure and round.
struct Way<'a> {
    name: &'static str,
    stage: &'a Stage,
    /// Namespace of its client.
    namespace: &'static str,
    /// What the client calls.
    address: &'static str,
    numbers: Vec<Vec<f64>>,
}

impl<'a> Way<'a> {
    fn new(name: &'static str, stage: &'a Stage, namespace: &'static str, address: &'static str) -> Self {
        Self { name, stage, namespace, address, numbers: vec![Vec::new(); MEASURES.len()] }
    }
}

/// The lab of the guide with what only the benchmark needs.
fn own(haproxy: Option<&PathBuf>) -> Result<Stage, StageError> {
    let further = |file: &str, text: &str| Manifest { file: file.to_owned(), text: text.to_owned() };
    let mut all = manifests();
    all.push(further("examples/bench/gateway.yaml", include_str!("../../../examples/bench/gateway.yaml")));
    let mut programs = Programs::default();
    if let Some(path) = haproxy {
        all.push(further("examples/bench/haproxy.yaml", include_str!("../../../examples/bench/haproxy.yaml")));
        programs.images.push(format!("haproxy={}", path.display()));
    }
    Stage::open(all, programs)
}

/// Runs the benchmark; 0 when every request of it was answered 200.
pub fn run(args: &Args) -> Result<i32, GuideError> {
    let lab = own(args.haproxy.as_ref()).map_err(GuideError::Lab)?;
    let other = args.l4_proxy.clone().map(|path| {
        Stage::open(manifests(), Programs { l4_proxy: Some(path), ..Programs::default() }).map_err(GuideError::Lab)
    });
    let other = other.transpose()?;
    let mut ways: Vec<Way<'_>> =
        Mode::ALL.iter().map(|mode| Way::new(mode.title(), &lab, mode.namespace(), "echo:8080")).collect();
    ways.push(Way::new("gateway, plaintext", &lab, Mode::None.namespace(), "hop-trysail"));
    if args.haproxy.is_some() {
        ways.push(Way::new("haproxy, plaintext", &lab, Mode::None.namespace(), "haproxy"));
    }
    if let Some(stage) = &other {
        ways.push(Way::new("ambient L4, other proxy", stage, Mode::AmbientL4.namespace(), "echo:8080"));
    }
    eprintln!("… memory");
    std::thread::sleep(SETTLED);
    let idle = memory(&lab).map_err(|e| GuideError::Case("bench", e))?;
    let mut failed = Vec::new();
    for round in 0..args.rounds {
        for (index, measure) in MEASURES.iter().enumerate() {
            for way in &mut ways {
                eprintln!("… round {} of {}: {}, {}", round + 1, args.rounds, measure.name, way.name);
                let summary = load(way, measure, args.seconds).map_err(|e| GuideError::Case("bench", e))?;
                if summary.codes.keys().any(|code| *code != 200) {
                    failed.push(format!("{}, {}: {:?}", measure.name, way.name, summary.codes));
                }
                if let Some(numbers) = way.numbers.get_mut(index) {
                    numbers.push((measure.value)(&summary));
                }
            }
        }
    }
    print!("{}", text(&ways));
    println!("\nresident memory of an idle process, MiB:");
    idle.iter().for_each(|(role, mib)| println!("  {role}: {mib:.1}"));
    failed.iter().for_each(|line| println!("NOT AS IT MUST BE: {line}"));
    if let Some(dir) = &args.out {
        let file = dir.join("bench.json");
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&file, format!("{:#}\n", document(&ways, &idle))));
        written.map_err(|e| GuideError::Out(file.clone(), e))?;
        println!("Numbers: {}", file.display());
    }
    Ok(i32::from(!failed.is_empty()))
}

fn load(way: &Way<'_>, measure: &Measure, seconds: u32) -> Result<Summary, StageError> {
    let (length, url) = (format!("{seconds}s"), format!("http://{}{}", way.address, measure.path));
    way.stage.load(way.namespace, &[&["-t", &length], measure.flags, &[&url]].concat())
}

/// Mean resident memory of the processes of each role of the data plane, MiB.
fn memory(stage: &Stage) -> Result<BTreeMap<&'static str, f64>, StageError> {
    let account: Account = serde_json::from_value(stage.ask(&Request::Account)?).unwrap_or_default();
    let mean = |role: &'static str| {
        let processes = account.get(role)?;
        let total: u64 = processes.values().map(|usage| usage.memory_kib).sum();
        Some((role, total as f64 / 1024.0 / processes.len() as f64))
    };
    Ok(["node proxy", "sidecar", "waypoint", "gateway"].into_iter().filter_map(mean).collect())
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Ratios to the baseline, round by round: lowest, median, highest.
fn ratios(numbers: &[f64], baseline: &[f64]) -> (f64, f64, f64) {
    let each: Vec<f64> = numbers.iter().zip(baseline).map(|(a, b)| a / b).collect();
    let low = each.iter().copied().fold(f64::INFINITY, f64::min);
    let high = each.iter().copied().fold(0.0, f64::max);
    (low, median(&each), high)
}

fn text(ways: &[Way<'_>]) -> String {
    let mut rows =
        vec![["MEASURED", "WAY", "MEDIAN", "UNIT", "OF NO MESH (LOWEST..HIGHEST)"].map(str::to_owned).to_vec()];
    for (index, measure) in MEASURES.iter().enumerate() {
        let of = |way: &Way<'_>| way.numbers.get(index).cloned().unwrap_or_default();
        let baseline = ways.first().map(of).unwrap_or_default();
        for way in ways {
            let numbers = of(way);
            let (low, middle, high) = ratios(&numbers, &baseline);
            let better = if measure.less { " (less is better)" } else { "" };
            rows.push(vec![
                measure.name.to_owned(),
                way.name.to_owned(),
                format!("{:.3}", median(&numbers)),
                measure.unit.to_owned(),
                format!("{middle:.3} ({low:.3}..{high:.3}){better}"),
            ]);
        }
    }
    table(&rows)
}

fn document(ways: &[Way<'_>], idle: &BTreeMap<&'static str, f64>) -> Value {
    let measures = MEASURES.iter().enumerate().map(|(index, measure)| {
        let all = ways
            .iter()
            .map(|way| (way.name.to_owned(), json!(way.numbers.get(index))))
            .collect::<serde_json::Map<_, _>>();
        json!({"name": measure.name, "unit": measure.unit, "rounds": all})
    });
    json!({"schema": "trysail.bench/v1", "measures": measures.collect::<Vec<_>>(), "idle_mib": idle})
}

#[cfg(test)]
mod tests {
    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(super::ratios(&[1.0, 4.0, 3.0], &[2.0, 4.0, 4.0]), (0.5, 0.75, 1.0));
    }
}
