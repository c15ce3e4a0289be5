//! `trysail bench`: what the node proxies cost, as ratios to the bare network in the same run. Whatever is compared takes turns.

use crate::run::{GuideError, manifests};
use crate::stage::{Mode, Stage, StageError};
use serde_json::{Value, json};
use std::path::PathBuf;
use trysail_lab::account::Account;
use trysail_lab::api::Request;
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
}

/// What is measured: a name, a unit, the load generator's flags, and how its result becomes a number.
struct Measure {
    name: &'static str,
    unit: &'static str,
    flags: &'static [&'static str],
    url: &'static str,
    value: fn(&Summary) -> f64,
    /// Whether less is better.
    less: bool,
}

/// Bytes of one answer in the throughput measurement.
const BULK: f64 = 33_554_432.0;

const MEASURES: [Measure; 4] = [
    Measure {
        name: "requests, 16 connections",
        unit: "1/s",
        flags: &["-qps", "0", "-c", "16"],
        url: "http://echo:8080/",
        value: Summary::qps,
        less: false,
    },
    Measure {
        name: "new connections, 16 at a time",
        unit: "1/s",
        // A fixed number: the client's ports are not to run out.
        flags: &["-qps", "0", "-c", "16", "-keepalive=false", "-n", "3000"],
        url: "http://echo:8080/",
        value: Summary::qps,
        less: false,
    },
    Measure {
        name: "one stream",
        unit: "Gbit/s",
        flags: &["-qps", "0", "-c", "1", "-timeout", "30s"],
        url: "http://echo:8080/?size=33554432",
        value: |s| s.qps() * BULK * 8.0 / 1e9,
        less: false,
    },
    Measure {
        name: "P50 at 200/s, 16 connections",
        unit: "ms",
        flags: &["-qps", "200", "-c", "16"],
        url: "http://echo:8080/",
        value: |s| s.histogram.percentile_ms(50.0),
        less: true,
    },
];

/// One way through a lab, with its numbers by measure and round.
struct Way<'a> {
    name: String,
    stage: &'a Stage,
    mode: Mode,
    numbers: Vec<Vec<f64>>,
}

/// Runs the benchmark; 0 when every request of it was answered 200.
pub fn run(args: &Args) -> Result<i32, GuideError> {
    let own = Stage::open(manifests(), None).map_err(GuideError::Lab)?;
    let other =
        args.l4_proxy.clone().map(|path| Stage::open(manifests(), Some(path))).transpose().map_err(GuideError::Lab)?;
    let way =
        |name: &str, stage, mode| Way { name: name.to_owned(), stage, mode, numbers: vec![Vec::new(); MEASURES.len()] };
    let mut ways = vec![way("no mesh", &own, Mode::None), way("ambient L4", &own, Mode::AmbientL4)];
    ways.extend(other.as_ref().map(|stage| way("ambient L4, other proxy", stage, Mode::AmbientL4)));
    let idle = memory(&own).map_err(|e| GuideError::Case("bench", e))?;
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
    println!("\nresident memory of an idle node proxy: {idle:.1} MiB");
    failed.iter().for_each(|line| println!("NOT AS IT MUST BE: {line}"));
    if let Some(dir) = &args.out {
        let file = dir.join("bench.json");
        let written =
            std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&file, format!("{:#}\n", document(&ways, idle))));
        written.map_err(|e| GuideError::Out(file.clone(), e))?;
        println!("Numbers: {}", file.display());
    }
    Ok(i32::from(!failed.is_empty()))
}

fn load(way: &Way<'_>, measure: &Measure, seconds: u32) -> Result<Summary, StageError> {
    let length = format!("{seconds}s");
    let mut command = vec!["fortio", "load", "-t", &length, "-json", "-", "-allow-initial-errors"];
    command.extend(measure.flags);
    command.push(measure.url);
    let output = way.stage.client(way.mode.namespace(), &command)?;
    let value = serde_json::from_str(&output.stdout).unwrap_or_default();
    Summary::from_json(&value).ok_or_else(|| StageError::Refused(format!("no result: {}", output.stderr.trim())))
}

/// Mean resident memory of the node proxies, MiB.
fn memory(stage: &Stage) -> Result<f64, StageError> {
    let account: Account = serde_json::from_value(stage.ask(&Request::Account)?).unwrap_or_default();
    let proxies = account.get("node proxy").cloned().unwrap_or_default();
    let total: u64 = proxies.values().map(|usage| usage.memory_kib).sum();
    Ok(total as f64 / 1024.0 / proxies.len().max(1) as f64)
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
                way.name.clone(),
                format!("{:.3}", median(&numbers)),
                measure.unit.to_owned(),
                format!("{middle:.3} ({low:.3}..{high:.3}){better}"),
            ]);
        }
    }
    table(&rows)
}

fn document(ways: &[Way<'_>], idle: f64) -> Value {
    let measures = MEASURES.iter().enumerate().map(|(index, measure)| {
        let all =
            ways.iter().map(|way| (way.name.clone(), json!(way.numbers.get(index)))).collect::<serde_json::Map<_, _>>();
        json!({"name": measure.name, "unit": measure.unit, "rounds": all})
    });
    json!({"schema": "trysail.bench/v1", "measures": measures.collect::<Vec<_>>(), "idle_proxy_mib": idle})
}

#[cfg(test)]
mod tests {
    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(super::ratios(&[1.0, 4.0, 3.0], &[2.0, 4.0, 4.0]), (0.5, 0.75, 1.0));
    }
}
