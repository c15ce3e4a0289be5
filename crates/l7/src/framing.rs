//! HTTP/1 framing, read strictly: where one message ends and the next begins must have one meaning (RFC 9112). Pure; bytes in, a
//! verdict out. What is ambiguous is refused before any parser that is more lenient sees it.

use std::fmt;

/// The largest head of a request, bytes, and the most header fields in it.
pub const HEAD_LIMIT: usize = 256 << 10;
/// The most header fields of a message.
pub const FIELD_LIMIT: usize = 500;
/// The longest line that states a chunk's size, with its extensions.
const CHUNK_LINE: usize = 256;
/// The largest trailer section.
const TRAILER_LIMIT: usize = 16 << 10;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The head is larger than [`HEAD_LIMIT`] or has more than [`FIELD_LIMIT`] fields.
    HeadTooLarge,
    /// A line that does not end in CR LF, or a CR in the middle of one.
    LineEnd,
    /// The request line is not `METHOD target HTTP/1.0` or `1.1`, with single blanks.
    RequestLine,
    /// A field line that is not `name: value`, is folded, or holds control characters.
    Field,
    /// No Host, several, or one that is not a host.
    Host,
    /// Several lengths, or one that is not a number.
    ContentLength,
    /// A transfer coding other than one `chunked`, or one in HTTP/1.0.
    TransferEncoding,
    /// Both a length and a transfer coding.
    Both,
    /// A chunk's size line or end that is malformed.
    Chunk,
    /// A trailer that would change the message's meaning.
    Trailer,
    /// CONNECT, which leads nowhere here.
    Connect,
}

impl Violation {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        match self {
            Self::HeadTooLarge => 431,
            Self::Connect => 405,
            _ => 400,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeadTooLarge => "the head is too large",
            Self::LineEnd => "a line does not end in CR LF",
            Self::RequestLine => "the request line is malformed",
            Self::Field => "a header field is malformed",
            Self::Host => "not exactly one valid Host",
            Self::ContentLength => "Content-Length is repeated or not a number",
            Self::TransferEncoding => "a Transfer-Encoding other than one chunked",
            Self::Both => "both Content-Length and Transfer-Encoding",
            Self::Chunk => "a malformed chunk",
            Self::Trailer => "a trailer that must not be one",
            Self::Connect => "CONNECT is not served",
        })
    }
}

/// How a message's body ends, and what may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its body.
    pub body: Body,
    /// It asks for another protocol: what follows the message may not be HTTP.
    pub upgrade: bool,
}

/// A body's framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Judges a request's head, from its first byte to its empty line.
pub fn head(bytes: &[u8]) -> Result<Head, Violation> {
    let mut lines = lines(bytes)?;
    let (first, fields) = (lines.remove(0), lines);
    let version_1_0 = request_line(first)?;
    if fields.len() > FIELD_LIMIT {
        return Err(Violation::HeadTooLarge);
    }
    let (mut hosts, mut length, mut chunked, mut upgrade) = (0, None, false, false);
    for line in fields {
        let (name, value) = field(line)?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
            host(value)?;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if length.is_some() || value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
                return Err(Violation::ContentLength);
            }
            length = std::str::from_utf8(value).ok().and_then(|v| v.parse::<u64>().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || version_1_0 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::TransferEncoding);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            upgrade = true;
        }
    }
    if hosts > 1 || (hosts == 0 && !version_1_0) {
        return Err(Violation::Host);
    }
    let body = match (length, chunked) {
        (Some(_), true) => return Err(Violation::Both),
        (_, true) => Body::Chunked,
        (length, false) => Body::Length(length.unwrap_or(0)),
    };
    Ok(Head { body, upgrade })
}

/// The lines of a head without their ends, the empty last one left out.
fn lines(bytes: &[u8]) -> Result<Vec<&[u8]>, Violation> {
    let mut out = Vec::with_capacity(16);
    let mut rest = bytes;
    loop {
        let end = rest.iter().position(|b| *b == b'\n').ok_or(Violation::LineEnd)?;
        let (line, after) = rest.split_at(end + 1);
        let line = line.strip_suffix(b"\r\n").ok_or(Violation::LineEnd)?;
        if line.contains(&b'\r') {
            return Err(Violation::LineEnd);
        }
        if line.is_empty() {
            return if out.is_empty() { Err(Violation::RequestLine) } else { Ok(out) };
        }
        out.push(line);
        rest = after;
    }
}

/// Judges a request line; whether it is HTTP/1.0.
fn request_line(line: &[u8]) -> Result<bool, Violation> {
    let mut parts = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Violation::RequestLine);
    };
    if method.is_empty() || !method.iter().all(|b| is_token(*b)) {
        return Err(Violation::RequestLine);
    }
    if method == b"CONNECT" {
        return Err(Violation::Connect);
    }
    if target.is_empty() || !target.iter().all(|b| b.is_ascii_graphic() && *b != b'#') {
        return Err(Violation::RequestLine);
    }
    let star = target == b"*" && method == b"OPTIONS";
    let absolute = target.starts_with(b"http://") || target.starts_with(b"https://");
    if !(target.starts_with(b"/") || star || absolute) {
        return Err(Violation::RequestLine);
    }
    match version {
        b"HTTP/1.1" => Ok(false),
        b"HTTP/1.0" => Ok(true),
        _ => Err(Violation::RequestLine),
    }
}

/// Name and value of a field line.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let colon = line.iter().position(|b| *b == b':').ok_or(Violation::Field)?;
    let (name, value) = line.split_at(colon);
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let printable = |b: &u8| *b == b'\t' || (*b >= b' ' && *b != 0x7f);
    // A blank before the colon and a folded line both have no token in front of it.
    if name.is_empty() || !name.iter().all(|b| is_token(*b)) || !value.iter().all(printable) {
        return Err(Violation::Field);
    }
    Ok((name, value))
}

/// A host with an optional port, and nothing else: no user, no list, no path.
fn host(value: &[u8]) -> Result<(), Violation> {
    let ok = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]%".contains(b);
    if value.is_empty() || !value.iter().all(ok) { Err(Violation::Host) } else { Ok(()) }
}

/// What the next bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer(usize),
    /// After a message that asked for another protocol, until it is known whether it was given.
    Held,
    /// Another protocol: nothing is judged any more.
    Opaque,
}

/// Follows the messages of a connection.
#[derive(Debug)]
pub struct Framer {
    state: State,
    upgrade: bool,
    /// Bytes of an unfinished head or line that were searched for its end.
    searched: usize,
    /// Heads that were passed on.
    pub heads: u64,
}

impl Default for Framer {
    fn default() -> Self {
        Self { state: State::Head, upgrade: false, searched: 0, heads: 0 }
    }
}

impl Framer {
    /// How many of `bytes`, which begin where the last call ended, may be passed on, and what is wrong with those behind them. 0 and
    /// nothing wrong: more are needed, or the connection is held.
    pub fn pass(&mut self, bytes: &[u8]) -> (usize, Option<Violation>) {
        let mut done = 0;
        loop {
            match self.step(bytes.get(done..).unwrap_or_default()) {
                Ok(0) => return (done, None),
                Ok(step) => done += step,
                Err(violation) => return (done, Some(violation)),
            }
        }
    }

    /// The connection waits for the outcome of an upgrade.
    pub fn held(&self) -> bool {
        self.state == State::Held
    }

    /// In the middle of a message, whose head was passed on.
    pub fn in_body(&self) -> bool {
        !matches!(self.state, State::Head | State::Held | State::Opaque)
    }

    /// The outcome of an upgrade.
    pub fn decided(&mut self, upgraded: bool) {
        if self.state == State::Held {
            self.state = if upgraded { State::Opaque } else { State::Head };
        }
    }

    fn after_message(&self) -> State {
        if self.upgrade { State::Held } else { State::Head }
    }

    fn step(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        match self.state {
            State::Opaque => Ok(bytes.len()),
            State::Held => Ok(0),
            State::Head => self.head(bytes),
            State::Body(left) => Ok(self.data(bytes, left, State::Body)),
            State::ChunkData(left) => Ok(self.data(bytes, left, State::ChunkData)),
            State::ChunkSize => self.chunk_size(bytes),
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    Ok(2)
                }
                [] | [b'\r'] => Ok(0),
                _ => Err(Violation::Chunk),
            },
            State::Trailer(seen) => self.trailer(bytes, seen),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        // One empty line before a request is tolerated (RFC 9112, 2.2), and not passed on as part of it.
        if self.searched == 0 {
            match bytes {
                [b'\r', b'\n', ..] => return Ok(2),
                [] | [b'\r'] => return Ok(0),
                _ => {}
            }
        }
        // Only what is new, and what may belong to it, is searched: a head that drips in costs no more than one that comes whole.
        let fresh = bytes.get(self.searched.saturating_sub(3)..).unwrap_or_default();
        let Some(end) = fresh.windows(4).position(|w| w == b"\r\n\r\n").map(|at| bytes.len() - fresh.len() + at + 4)
        else {
            self.searched = bytes.len();
            // A head that ends in another way never ends here.
            if fresh.windows(2).any(|w| w == b"\n\n") || fresh.windows(3).any(|w| w == b"\n\r\n" || w == b"\r\r\n") {
                return head(bytes).map(|_| 0);
            }
            return if bytes.len() > HEAD_LIMIT { Err(Violation::HeadTooLarge) } else { Ok(0) };
        };
        if end > HEAD_LIMIT {
            return Err(Violation::HeadTooLarge);
        }
        let read = head(bytes.get(..end).unwrap_or_default())?;
        self.searched = 0;
        self.heads += 1;
        self.upgrade = read.upgrade;
        self.state = match read.body {
            Body::Length(0) => self.after_message(),
            Body::Length(length) => State::Body(length),
            Body::Chunked => State::ChunkSize,
        };
        Ok(end)
    }

    fn data(&mut self, bytes: &[u8], left: u64, same: fn(u64) -> State) -> usize {
        let part = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - part as u64;
        self.state = match (left, self.state) {
            (0, State::ChunkData(_)) => State::ChunkEnd,
            (0, _) => self.after_message(),
            (left, _) => same(left),
        };
        part
    }

    fn chunk_size(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let Some(line) = line(bytes, CHUNK_LINE, Violation::Chunk)? else { return Ok(0) };
        let (size, extension) = match line.iter().position(|b| *b == b';') {
            Some(at) => line.split_at(at),
            None => (line, &[][..]),
        };
        if size.is_empty() || size.len() > 15 || !size.iter().all(u8::is_ascii_hexdigit) {
            return Err(Violation::Chunk);
        }
        if !extension.iter().all(|b| *b == b'\t' || (*b >= b' ' && *b < 0x7f)) {
            return Err(Violation::Chunk);
        }
        let text = std::str::from_utf8(size).map_err(|_| Violation::Chunk)?;
        let size = u64::from_str_radix(text, 16).map_err(|_| Violation::Chunk)?;
        self.state = if size == 0 { State::Trailer(0) } else { State::ChunkData(size) };
        Ok(line.len() + 2)
    }

    fn trailer(&mut self, bytes: &[u8], seen: usize) -> Result<usize, Violation> {
        let left = TRAILER_LIMIT.saturating_sub(seen);
        let Some(line) = line(bytes, left, Violation::HeadTooLarge)? else { return Ok(0) };
        let length = line.len() + 2;
        if line.is_empty() {
            self.state = self.after_message();
            return Ok(length);
        }
        let (name, _) = field(line)?;
        let framing =
            ["content-length", "transfer-encoding", "host", "trailer", "connection", "authorization", "cookie"];
        if framing.iter().any(|f| name.eq_ignore_ascii_case(f.as_bytes())) {
            return Err(Violation::Trailer);
        }
        self.state = State::Trailer(seen + length);
        Ok(length)
    }
}

/// A line without its end; `None` when it is not whole yet.
fn line(bytes: &[u8], limit: usize, too_long: Violation) -> Result<Option<&[u8]>, Violation> {
    let Some(end) = bytes.iter().position(|b| *b == b'\n') else {
        // A CR that is followed by something else can be told before the line ends.
        let bare = bytes.iter().position(|b| *b == b'\r').is_some_and(|at| at + 1 < bytes.len());
        return if bare {
            Err(Violation::LineEnd)
        } else if bytes.len() > limit {
            Err(too_long)
        } else {
            Ok(None)
        };
    };
    let line = bytes.get(..end).and_then(|l| l.strip_suffix(b"\r")).ok_or(Violation::LineEnd)?;
    if line.contains(&b'\r') {
        return Err(Violation::LineEnd);
    }
    if line.len() > limit { Err(too_long) } else { Ok(Some(line)) }
}

#[cfg(test)]
mod tests;
