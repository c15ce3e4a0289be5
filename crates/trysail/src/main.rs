//! The binary: parses arguments, wires, exits. Every role of the mesh is a verb of it.

mod cmd;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().collect();
    // In a pod whose image is fortio, this binary stands in for it.
    let name = args.first().map(|a| a.rsplit('/').next().unwrap_or(a).to_owned()).unwrap_or_default();
    let result = match (name.as_str(), args.get(1).map(String::as_str)) {
        ("fortio", verb) => match verb {
            Some("server") => cmd::echo::run(args.split_off(2)),
            Some("load") => cmd::load::run(args.split_off(2)),
            other => {
                eprintln!("only `fortio server` and `fortio load` are built in, not {other:?}");
                return ExitCode::from(2);
            }
        },
        (_, Some("load")) => cmd::load::run(args.split_off(2)),
        (_, Some("echo")) => cmd::echo::run(args.split_off(2)),
        (_, Some("orders")) => cmd::orders::run(args.split_off(2)),
        // The stages of a lab must start with one thread and no runtime.
        (_, Some("lab-stage")) => cmd::lab::stage(&args),
        _ => cmd::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
