//! What runs inside pods: small clients and servers that misbehave, or do not, on order.

mod client;
mod reach;
mod recorder;
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use trysail_api::ids::SpiffeId;
use trysail_identity::svid::Svid;

/// Runs `args`.
pub fn run(args: &[String]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["sleep"] => sleep(),
        ["greet", port] => serve(port, |mut stream| {
            stream.write_all(b"hello from the server\n").unwrap();
            let _ = stream.read(&mut [0; 16]);
        }),
        ["late-answer", port] => serve(port, |mut stream| {
            let mut asked = Vec::new();
            if stream.read_to_end(&mut asked).is_ok() && !asked.is_empty() {
                let _ = stream.write_all(&vec![b'.'; 10_000_000]);
            }
        }),
        ["listen", ports @ ..] => reach::listen(ports),
        ["reach", targets @ ..] => reach::reach(targets),
        ["http", port] => server::run(port, ""),
        ["http", port, name] => server::run(port, name),
        ["recorder", port] => recorder::run(port),
        ["raw", address, bytes] => client::raw(address, bytes),
        ["raws-whole", address, bytes] => client::whole(address, bytes),
        ["raws", address, list] => client::raws(address, list),
        ["protocols", address] => client::protocols(address),
        ["large", address, mib] => client::large(address, mib),
        ["https", address, name, root, alpn] => client::https(address, (name, root), alpn),
        ["each", list] => client::each(list),
        ["first-line", address] => {
            let mut line = String::new();
            BufReader::new(TcpStream::connect(address).unwrap()).read_line(&mut line).unwrap();
            print!("{line}");
        }
        ["half-close", address] => {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"question").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            println!("{} bytes after 8", answer.len());
        }
        ["tunnel", address, authority, identity, chain, key, root] => {
            tunnel((address, authority), (identity, chain, key), root)
        }
        other => panic!("no such tool: {other:?}"),
    }
}

/// Until SIGTERM, which ends a process that does nothing about it.
fn sleep() {
    loop {
        std::thread::park();
    }
}

fn serve(port: &str, answer: impl Fn(TcpStream) + Send + Sync + 'static) {
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).unwrap();
    let answer = Arc::new(answer);
    for stream in listener.incoming().flatten() {
        let answer = answer.clone();
        std::thread::spawn(move || answer(stream));
    }
}

/// Dials a tunnel and says how far it came.
fn tunnel((address, authority): (&str, &str), (identity, chain, key): (&str, &str, &str), root: &str) {
    let identity: SpiffeId = identity.parse().unwrap();
    // The chain states its own root; the lab's is what the far end is checked against.
    let leafs = chain.split_inclusive("-----END CERTIFICATE-----\n").map(str::to_owned).take(2);
    let svid = Svid::from_pem(&identity, &leafs.chain([root.to_owned()]).collect::<Vec<_>>(), key).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let expected = SpiffeId::new("cluster.local", "m", "default");
        let config = trysail_identity::tls::client_config(&svid, vec![expected]).unwrap();
        let tasks = trysail_base::tasks::Tasks::default();
        use trysail_hbone::client::{DialError, handshake};
        let opened = match handshake(stream, config, &tasks).await {
            Ok(tunnel) => tunnel.open(&authority.parse().unwrap(), Default::default()).await.map(drop),
            Err(error) => Err(error),
        };
        match opened {
            Ok(()) => println!("open"),
            Err(DialError::Refused(status)) => println!("refused {status}"),
            // With TLS 1.3 a client hears of its refusal with the first answer.
            Err(DialError::Tls(_) | DialError::Http2(_)) => println!("tls"),
            Err(other) => println!("{other}"),
        }
    });
}
