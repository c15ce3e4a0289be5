//! A server that keeps every byte it is sent, and answers each head with an empty 200 in the most lenient reading there is.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// Serves until it is killed; `GET /recorded` gives what came on all other connections, and forgets it.
pub fn run(port: &str) {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).unwrap();
    let seen = Arc::new(Mutex::new(Vec::<u8>::new()));
    for stream in listener.incoming().flatten() {
        let seen = seen.clone();
        std::thread::spawn(move || {
            let mut stream = stream;
            let mut buffer = [0; 65_536];
            let mut own = Vec::new();
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let bytes = &buffer[..count];
                own.extend(bytes);
                if own.starts_with(b"GET /recorded ") {
                    let all = std::mem::take(&mut *seen.lock().unwrap());
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", all.len());
                    let _ = stream.write_all(&[head.as_bytes(), &all].concat());
                    return;
                }
                seen.lock().unwrap().extend(bytes);
                // A head may end with bare line feeds for all this server cares.
                if own.ends_with(b"\n\r\n") || own.ends_with(b"\n\n") || !bytes.contains(&b'\n') {
                    own.clear();
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
            }
        });
    }
}
