//! What a connection speaks, by its first bytes.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// How long a client may keep silent before it is taken for one that waits for its server.
const SILENCE: Duration = Duration::from_millis(200);
/// The beginning of HTTP/2 with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest method that is taken for one.
const METHOD: usize = 24;

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
    /// A TLS handshake.
    Tls,
    /// Anything else, or nothing yet.
    Other,
}

/// What the bytes are the beginning of; `None`: too few to tell.
pub fn look(bytes: &[u8]) -> Option<Spoken> {
    match bytes {
        [] => None,
        [0x16, rest @ ..] => Some(if rest.first().is_none_or(|b| *b == 3) { Spoken::Tls } else { Spoken::Other }),
        bytes if bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes) => None,
        bytes if bytes.starts_with(PREFACE) => Some(Spoken::Http2),
        bytes => {
            let method = bytes.iter().position(|b| *b == b' ');
            let letters = |part: &[u8]| !part.is_empty() && part.iter().all(|b| b.is_ascii_uppercase() || *b == b'-');
            match method {
                Some(end) if end <= METHOD && letters(bytes.get(..end).unwrap_or_default()) => match bytes.get(end + 1)
                {
                    Some(b'/' | b'*' | b'h' | b'H') => Some(Spoken::Http1),
                    Some(_) => Some(Spoken::Other),
                    None => None,
                },
                Some(_) => Some(Spoken::Other),
                None if bytes.len() <= METHOD && letters(bytes) => None,
                None => Some(Spoken::Other),
            }
        }
    }
}

/// A stream whose first bytes were looked at.
pub struct Prefixed<T> {
    prefix: Bytes,
    inner: T,
}

impl<T> Prefixed<T> {
    /// The stream that begins with `prefix`.
    pub fn new(prefix: Bytes, inner: T) -> Self {
        Self { prefix, inner }
    }

    /// Both parts.
    pub fn into_parts(self) -> (Bytes, T) {
        (self.prefix, self.inner)
    }
}

/// Looks at a connection's first bytes. With `patient` a silent client is waited for.
pub async fn sniff<T: AsyncRead + Unpin>(mut stream: T, patient: bool) -> io::Result<(Spoken, Prefixed<T>)> {
    let mut seen = BytesMut::with_capacity(512);
    let reading = async {
        loop {
            if let Some(spoken) = look(&seen) {
                return Ok(spoken);
            }
            if stream.read_buf(&mut seen).await? == 0 {
                return Ok(Spoken::Other);
            }
        }
    };
    let spoken: io::Result<Spoken> =
        if patient { reading.await } else { tokio::time::timeout(SILENCE, reading).await.unwrap_or(Ok(Spoken::Other)) };
    Ok((spoken?, Prefixed::new(seen.freeze(), stream)))
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let part = this.prefix.len().min(buf.remaining());
        buf.put_slice(this.prefix.get(..part).unwrap_or_default());
        this.prefix.advance(part);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prefixed<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes() {
        for (bytes, spoken) in [
            (&b"GET / HTTP/1.1\r\n"[..], Some(Spoken::Http1)),
            (b"OPTIONS * HTTP/1.1", Some(Spoken::Http1)),
            (b"M-SEARCH * HTTP/1.1", Some(Spoken::Http1)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Spoken::Http2)),
            (b"PRI * HT", None),
            (b"\x16\x03\x01", Some(Spoken::Tls)),
            (b"GE", None),
            (b"GET ", None),
            (b"HELO there", Some(Spoken::Other)),
            (b"get / ", Some(Spoken::Other)),
            (b"\x00\x01", Some(Spoken::Other)),
            (b"", None),
        ] {
            assert_eq!(look(bytes), spoken, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
