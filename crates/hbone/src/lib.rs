//! HBONE: HTTP/2 CONNECT tunnels over mutual TLS, client, server and pool. Knows nothing of policies.

pub mod authority;
pub mod caller;
pub mod client;
pub mod pool;
pub mod server;
pub mod stream;

use std::time::Duration;

/// The port on which tunnels are accepted.
pub const PORT: u16 = 15008;
/// Flow-control window of one stream, bytes.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// Flow-control window of one connection, bytes. Larger than a stream's: equal ones can deadlock.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Largest frame, bytes.
pub(crate) const FRAME: u32 = 1 << 20;
/// Streams that a server takes on one connection.
pub(crate) const SERVER_STREAMS: u32 = 200;
/// Streams that a client opens on one connection.
pub(crate) const CLIENT_STREAMS: usize = 100;
/// Bytes that one read of a tunnel's socket may take. The TLS library alone asks for 4 KiB at a time.
pub(crate) const READ: usize = 64 << 10;
/// How often an open connection is probed, and how long an answer may take.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(10);
pub(crate) const PING_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection without streams is kept.
pub(crate) const IDLE: Duration = Duration::from_secs(300);
/// How long connecting and the handshake may take together.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
