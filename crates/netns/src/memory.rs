//! Resident memory that a process has no more use for.

use nix::sys::mman::{MmapAdvise, madvise};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// Lets go of all code that was used until now, such as what starting took: in every pod of a mesh that is most of a sidecar's memory.
/// What is needed again comes back from the page cache at its first use.
/// An error leaves the rest resident.
pub fn let_code_go() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    maps.lines().filter_map(code).try_for_each(|(start, length)| let_go(start, length))
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
fn let_go(start: usize, length: usize) -> io::Result<()> {
    let Some(address) = NonNull::new(std::ptr::without_provenance_mut::<c_void>(start)) else { return Ok(()) };
    // SAFETY: the range is a private mapping of a file, readable and executable and never writable, so it holds the file's bytes and
    // nothing else; after MADV_DONTNEED the next access reads the same bytes again (madvise(2)). Nothing is unmapped.
    Ok(unsafe { madvise(address, length, MmapAdvise::MADV_DONTNEED) }?)
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

    #[test]
    fn the_process_goes_on() {
        let_code_go().unwrap();
        assert_eq!("1".parse::<u8>().unwrap() + 1, 2);
    }
}
