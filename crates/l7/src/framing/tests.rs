use super::*;
use proptest::prelude::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// What is passed of a connection's first bytes, given in pieces of at most `piece` bytes.
fn pieces(bytes: &[u8], piece: usize) -> (usize, Option<Violation>, Framer) {
    let (mut framer, mut passed, mut seen) = (Framer::default(), 0, 0);
    while seen < bytes.len() {
        seen = (seen + piece).min(bytes.len());
        let (more, wrong) = framer.pass(&bytes[passed..seen]);
        passed += more;
        if wrong.is_some() {
            return (passed, wrong, framer);
        }
    }
    (passed, None, framer)
}

#[test]
fn messages_that_have_one_meaning_pass_whole() {
    for (at, text) in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    ]
    .iter()
    .enumerate()
    {
        let twice = text.repeat(2);
        for piece in [1, 2, 7, 1000] {
            let (passed, wrong, framer) = pieces(twice.as_bytes(), piece);
            assert_eq!((passed, wrong, framer.heads), (twice.len(), None, 2), "{at} in pieces of {piece}: {text:?}");
            assert!(!framer.in_body());
        }
    }
}

#[test]
fn what_has_two_meanings_is_refused_for_its_reason() {
    use Violation::*;
    let posted = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}");
    let chunks = |body: &str| posted("Transfer-Encoding: chunked", body);
    for (text, reason) in [
        (posted("Content-Length: 1\r\nContent-Length: 1", "a"), ContentLength),
        (posted("Content-Length: 1, 1", "a"), ContentLength),
        (posted("Content-Length: +1", "a"), ContentLength),
        (posted("Content-Length:", "a"), ContentLength),
        (posted("Content-Length: 1\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), Both),
        (posted("Transfer-Encoding: gzip, chunked", ""), TransferEncoding),
        (posted("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", ""), TransferEncoding),
        (posted("Transfer-Encoding: \x0bchunked", ""), Field),
        (posted("Transfer-Encoding : chunked", ""), Field),
        (posted("X: a\r\n folded", ""), Field),
        (posted("X: a\0b", ""), Field),
        (posted("Host: b", ""), Host),
        ("GET / HTTP/1.1\r\n\r\n".into(), Host),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), Host),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n".into(), Host),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), TransferEncoding),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), RequestLine),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n".into(), RequestLine),
        ("GET /#x HTTP/1.1\r\nHost: a\r\n\r\n".into(), RequestLine),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(), RequestLine),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n".into(), Connect),
        ("GET / HTTP/1.1\nHost: a\n\n".into(), LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n".into(), LineEnd),
        (chunks("3\nabc\r\n0\r\n\r\n"), LineEnd),
        (chunks("0x3\r\nabc\r\n0\r\n\r\n"), Chunk),
        (chunks("-1\r\n"), Chunk),
        (chunks("1000000000000000\r\n"), Chunk),
        (chunks("3\r\nabcd\r\n0\r\n\r\n"), Chunk),
        (chunks("0\r\nContent-Length: 3\r\n\r\n"), Trailer),
        (posted(&format!("X: {}", "a".repeat(HEAD_LIMIT)), ""), HeadTooLarge),
        (posted(&"X: a\r\n".repeat(FIELD_LIMIT), ""), HeadTooLarge),
    ] {
        let shown = &text[..text.len().min(80)];
        for piece in [1, 5, 1 << 20] {
            // A head of many bytes is searched once, not once for every byte.
            if piece == 1 && text.len() > 10_000 {
                continue;
            }
            let (passed, wrong, framer) = pieces(text.as_bytes(), piece);
            assert_eq!(wrong, Some(reason), "in pieces of {piece}: {shown:?}");
            let in_chunks = matches!(reason, Chunk | Trailer) || text.contains("\r\n\r\n3\n");
            assert_eq!(framer.heads, u64::from(in_chunks), "{shown:?}");
            assert!(in_chunks || passed == 0, "nothing of a refused head is passed on: {shown:?}");
        }
    }
}

#[test]
fn after_an_upgrade_nothing_passes_until_it_is_decided() {
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n";
    let bytes = [&upgrade[..], b"\x00binary"].concat();
    let mut framer = Framer::default();
    assert_eq!(framer.pass(&bytes), (upgrade.len(), None));
    assert!(framer.held());
    let mut refused = Framer { state: State::Held, ..Framer::default() };
    refused.decided(false);
    assert!(refused.pass(b"\x00binary\r\n\r\n").1.is_some());
    framer.decided(true);
    assert_eq!(framer.pass(b"\x00binary"), (7, None));
}

proptest! {
    /// Where bytes are cut makes no difference, and nothing makes it panic.
    #[test]
    fn pieces_make_no_difference(noise in proptest::collection::vec(any::<u8>(), 0..40), at in 0usize..60, piece in 1usize..20) {
        let mut bytes = [GET, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"].concat();
        let at = at.min(bytes.len());
        bytes.splice(at..at, noise);
        let (whole, cut) = (pieces(&bytes, bytes.len()), pieces(&bytes, piece));
        prop_assert_eq!(whole.1.is_some(), cut.1.is_some());
        if whole.1.is_none() {
            prop_assert_eq!(whole.0, cut.0);
        }
    }
}
