use crate::authority::Authority;
use crate::client::{self, DialError};
use crate::pool::{Key, Pool};
use crate::server;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_base::relay::{ChunkRead, ChunkWrite, Moved, relay};
use trysail_base::tasks::Tasks;
use trysail_identity::ca::{Authority as Ca, request};
use trysail_identity::svid::Svid;
use trysail_identity::tls::client_config;

fn svid(ca: &Ca, name: &str) -> Svid {
    let identity = SpiffeId::new("cluster.local", "ns", name);
    let (key, csr) = request(&identity).unwrap();
    let chain = ca.sign(&csr, &identity, Duration::from_secs(600), SystemTime::now()).unwrap();
    Svid::from_pem(&identity, &chain, &key).unwrap()
}

struct World {
    tasks: Tasks,
    pool: Pool,
    key: Key,
    client: Svid,
    accepted: Arc<AtomicUsize>,
}

/// A tunnel server that echoes on port 7, refuses port 9, and drains each connection after `streams` streams.
async fn world(streams: usize) -> World {
    let (ca, tasks) = (Ca::create("cluster.local").unwrap(), Tasks::default());
    let (client, server_svid) = (svid(&ca, "client"), svid(&ca, "server"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let key = Key {
        source: WorkloadUid::new("client"),
        source_identity: client.identity.clone(),
        destination: WorkloadUid::new("server"),
        expected: vec![server_svid.identity.clone()],
        address: listener.local_addr().unwrap(),
    };
    let accepted = Arc::new(AtomicUsize::new(0));
    let (counter, owner) = (accepted.clone(), tasks.clone());
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
            let (config, tasks) = (server_svid.server.clone(), owner.clone());
            owner.spawn(async move {
                let Ok(mut tunnel) = server::accept(stream, config).await else { return };
                let mut taken = 0;
                while let Some(connect) = tunnel.next().await {
                    if matches!(connect.authority, Authority::Address(a) if a.port() == 9) {
                        connect.refuse(StatusCode::UNAUTHORIZED);
                        continue;
                    }
                    let (mut read, mut write) = connect.accept(HeaderMap::new()).unwrap();
                    tasks.spawn(async move {
                        while let Ok(Some(mut chunk)) = poll_fn(|cx| read.poll_chunk(cx)).await {
                            poll_fn(|cx| write.poll_write_chunk(cx, &mut chunk)).await.unwrap();
                        }
                        let _ = poll_fn(|cx| write.poll_finish(cx)).await;
                    });
                    taken += 1;
                    if taken == streams {
                        tunnel.drain();
                    }
                }
            });
        }
    });
    World { tasks, pool: Pool::default(), key, client, accepted }
}

impl World {
    async fn open(&self, port: u16) -> Result<crate::pool::Pooled, DialError> {
        let authority = Authority::Address(([10, 0, 0, 1], port).into());
        let dial = || async {
            let stream = TcpStream::connect(self.key.address).await.map_err(DialError::Connect)?;
            let config = client_config(&self.client, self.key.expected.clone()).unwrap();
            client::handshake(stream, config, &self.tasks).await
        };
        self.pool.open(&self.key, &authority, &HeaderMap::new(), dial).await
    }

    async fn echo(&self, text: &str) -> Result<String, DialError> {
        let mut pooled = self.open(7).await?;
        let mut chunk = Bytes::from(text.to_owned());
        poll_fn(|cx| pooled.write.poll_write_chunk(cx, &mut chunk)).await.unwrap();
        poll_fn(|cx| pooled.write.poll_finish(cx)).await.unwrap();
        let mut got = Vec::new();
        while let Some(chunk) = poll_fn(|cx| pooled.read.poll_chunk(cx)).await.unwrap() {
            got.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8(got).unwrap())
    }
}

#[tokio::test]
async fn streams_share_a_connection_and_a_refusal_is_told_as_such() {
    let world = world(usize::MAX).await;
    assert_eq!(world.echo("one").await.unwrap(), "one");
    assert_eq!(world.echo("two").await.unwrap(), "two");
    assert!(matches!(world.open(9).await, Err(DialError::Refused(StatusCode::UNAUTHORIZED))));
    assert_eq!(world.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn more_streams_than_one_connection_takes_get_another() {
    let world = world(usize::MAX).await;
    let mut held = Vec::new();
    for _ in 0..crate::CLIENT_STREAMS + 1 {
        held.push(world.open(7).await.map_err(|e| e.to_string()).unwrap());
    }
    assert_eq!(world.accepted.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_draining_connection_loses_no_stream() {
    let world = world(3).await;
    for step in 0..20 {
        let text = format!("step {step}");
        assert_eq!(world.echo(&text).await.unwrap(), text);
    }
    assert!(world.accepted.load(Ordering::Relaxed) > 1);
}

#[tokio::test]
async fn a_relay_over_a_tunnel_keeps_every_byte_and_the_half_close() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = world(usize::MAX).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (app, near) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (app, near) = (app.unwrap(), near.unwrap().0);
    let pooled = world.open(7).await.map_err(|e| e.to_string()).unwrap();
    let moved = Moved::default();
    let sent: Vec<u8> = (0..20_000_000u32).map(|i| (i % 251) as u8).collect();
    let (mut app_read, mut app_write) = app.into_split();
    let body = sent.clone();
    let (end, got, ()) = tokio::join!(
        relay(trysail_base::relay::tcp(near), (pooled.read, pooled.write), &moved),
        async move {
            let mut got = Vec::new();
            app_read.read_to_end(&mut got).await.unwrap();
            got
        },
        async move {
            app_write.write_all(&body).await.unwrap();
            app_write.shutdown().await.unwrap();
        }
    );
    end.unwrap();
    assert!(got == sent);
    assert_eq!(moved.forward.load(Ordering::Relaxed), sent.len() as u64);
}

#[test]
fn authorities() {
    for good in ["10.0.0.1:80", "[::1]:80", "echo.ns.svc.cluster.local:8080"] {
        assert_eq!(good.parse::<Authority>().unwrap().to_string(), good);
    }
    for bad in ["", "10.0.0.1", "host", ":80", "host:", "host:99999", "a b:80", "::1:80"] {
        assert!(bad.parse::<Authority>().is_err(), "{bad}");
    }
}
