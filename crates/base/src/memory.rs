//! Resident memory that a process has no more use for.

use crate::ready::Readiness;
use nix::sys::mman::{MmapAdvise, madvise};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::Duration;

/// How long after readiness a process is taken to be done with starting.
const SETTLED: Duration = Duration::from_secs(5);

/// Once the process has started, lets go of the code that starting took. In every pod of a mesh that is most of a sidecar's memory;
/// what is needed again comes back from the page cache at its first use.
pub async fn settle(ready: Readiness) {
    ready.wait().await;
    tokio::time::sleep(SETTLED).await;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(code).for_each(|(start, length)| let_go(start, length));
}

/// The addresses of a line of `/proc/PID/maps` (proc(5)) if it maps code of a file, which nobody writes to.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, access, inode) = (fields.next()?, fields.next()?, fields.nth(2)?);
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (access == "r-xp" && inode != "0").then(|| (start, end.saturating_sub(start)))
}

#[allow(unsafe_code)]
fn let_go(start: usize, length: usize) {
    let Some(address) = NonNull::new(std::ptr::without_provenance_mut::<c_void>(start)) else { return };
    // SAFETY: the range is a private mapping of a file, readable and executable and never writable, so it holds the file's bytes and
    // nothing else; after MADV_DONTNEED the next access reads the same bytes again (madvise(2)). Nothing is unmapped.
    if let Err(error) = unsafe { madvise(address, length, MmapAdvise::MADV_DONTNEED) } {
        tracing::debug!(%error, "code stays resident");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_let_go() {
        for (line, wanted) in [
            ("1000-3000 r-xp 00001000 08:01 42 /usr/bin/trysail", Some((0x1000, 0x2000))),
            ("1000-3000 r--p 00001000 08:01 42 /usr/bin/trysail", None),
            ("1000-3000 rwxp 00001000 08:01 42 /usr/bin/trysail", None),
            ("1000-3000 r-xp 00000000 00:00 0 [vdso]", None),
            ("nonsense", None),
        ] {
            assert_eq!(code(line), wanted, "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_goes_on() {
        settle(Readiness::default()).await;
        assert_eq!("1".parse::<u8>().unwrap() + 1, 2);
    }
}
