//! Evidence from the wire: what crosses the fabric is searched for a marker.

use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use trysail_netns::capture::Capture;
use trysail_netns::ns::NetNs;

/// How long the wire must be quiet after the end was asked for: what was sent before it is seen.
const QUIET: Duration = Duration::from_millis(100);

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Frames, counted at each link of the fabric that they cross.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Frames that hold the marker.
    pub with_marker: u64,
    /// TCP segments from or to the tunnel port.
    pub tunnel_frames: u64,
}

/// A capture that runs.
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Seen>>,
}

/// Starts a capture on the fabric; when this returns, the next frame is seen.
pub fn start(marker: String) -> io::Result<Running> {
    let capture = Capture::open(&NetNs::current().map_err(io::Error::other)?)?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let thread =
        std::thread::Builder::new().name("capture".into()).spawn(move || search(capture, marker.as_bytes(), &flag))?;
    Ok(Running { stop, thread })
}

impl Running {
    /// Ends the capture.
    pub fn finish(self) -> io::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| io::Error::other("the capture was lost"))?
    }
}

fn search(mut capture: Capture, marker: &[u8], stop: &AtomicBool) -> io::Result<Seen> {
    let mut seen = Seen::default();
    let mut buffer = vec![0; 1 << 17];
    loop {
        match capture.next(&mut buffer, QUIET)? {
            Some(length) => {
                let frame = buffer.get(..length).unwrap_or_default();
                seen.frames += 1;
                seen.bytes += length as u64;
                seen.with_marker += u64::from(frame.windows(marker.len().max(1)).any(|w| w == marker));
                seen.tunnel_frames += u64::from(is_tunnel(frame));
            }
            None if stop.load(Ordering::Relaxed) => return Ok(seen),
            None => {}
        }
    }
}

/// Whether an Ethernet frame is an IPv4 TCP segment with port 15008.
fn is_tunnel(frame: &[u8]) -> bool {
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    let word = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
    let transport = 14 + usize::from(byte(14) & 0xf) * 4;
    word(12) == 0x0800 && byte(23) == 6 && [word(transport), word(transport + 2)].contains(&15008)
}

#[cfg(test)]
mod tests {
    #[test]
    fn tunnel_segments_are_told_apart() {
        let mut frame = vec![0u8; 60];
        (frame[12], frame[14], frame[23]) = (8, 0x45, 6);
        assert!(!super::is_tunnel(&frame));
        frame[36..38].copy_from_slice(&15008u16.to_be_bytes());
        assert!(super::is_tunnel(&frame));
        assert!(!super::is_tunnel(&[]));
    }
}
