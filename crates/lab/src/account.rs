//! CPU and memory of processes, by role.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one role's processes use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processes.
    pub processes: u32,
    /// CPU time since their start, milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, KiB.
    pub memory_kib: u64,
}

/// Usage by process name within a role.
pub type Account = BTreeMap<String, BTreeMap<String, Usage>>;

fn ticks_to_ms(ticks: u64) -> u64 {
    // USER_HZ is 100 on every Linux that runs this.
    ticks * 10
}

fn one(pid: &str) -> Option<(u32, Usage)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses; what follows its last one is plain.
    let rest: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| rest.get(at).and_then(|n| n.parse::<u64>().ok());
    let group = u32::try_from(number(2)?).ok()?;
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let resident: u64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some((group, Usage { processes: 1, cpu_ms: ticks_to_ms(number(11)? + number(12)?), memory_kib: resident * 4 }))
}

/// Usage of the process groups in `groups`: leader's pid to role and name.
pub fn measure(groups: &BTreeMap<u32, (String, String)>) -> Account {
    let mut account = Account::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        let Some((group, usage)) = one(pid) else { continue };
        let Some((role, process)) = groups.get(&group) else { continue };
        let total = account.entry(role.clone()).or_default().entry(process.clone()).or_default();
        total.processes += usage.processes;
        total.cpu_ms += usage.cpu_ms;
        total.memory_kib += usage.memory_kib;
    }
    account
}
