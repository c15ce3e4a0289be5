//! Promises, kept by the real binary in real namespaces: one file a promise. As root every test runs twice, as root and as an
//! unprivileged user; otherwise once, as the user at hand.
//!
//! The same executable is the tool that runs inside pods: `e2e tool …`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod access;
mod authorization;
mod churn;
mod control;
mod differential;
mod engine;
mod guide;
mod lab;
mod matrix;
mod messages;
mod network;
mod operate;
mod packages;
mod peers;
mod routes;
mod smuggling;
mod support;
mod tool;
mod traffic;

use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use support::{Test, User};

/// What no test comes near: one that hangs is said to hang, and the others still run.
const LIMIT: Duration = Duration::from_mins(8);

/// Runs one test on a thread of its own, for at most [`LIMIT`].
fn bounded(test: fn(User), user: User) -> Result<(), Failed> {
    let (done, over) = channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done;
        test(user);
    });
    match over.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => Err(format!("still not over after {} s", LIMIT.as_secs()).into()),
        _ => thread.join().map_err(|_| "see its panic above".into()),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) == Some("tool") {
        return tool::run(args.get(2..).unwrap_or_default());
    }
    let mut arguments = Arguments::from_args();
    // Two cores: labs side by side would only wait for each other.
    arguments.test_threads = Some(1);
    let tests: Vec<Test> = [
        access::TESTS,
        authorization::TESTS,
        churn::TESTS,
        control::TESTS,
        differential::TESTS,
        engine::TESTS,
        guide::TESTS,
        lab::TESTS,
        matrix::TESTS,
        messages::TESTS,
        network::TESTS,
        operate::TESTS,
        packages::TESTS,
        peers::TESTS,
        routes::TESTS,
        smuggling::TESTS,
        traffic::TESTS,
    ]
    .concat();
    let users = if nix::unistd::geteuid().is_root() { vec![User::Root, User::Nobody] } else { vec![User::Own] };
    let mut trials = Vec::new();
    for (name, test) in tests {
        for user in &users {
            let user = *user;
            trials.push(Trial::test(format!("{name} ({user:?})"), move || bounded(test, user)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
