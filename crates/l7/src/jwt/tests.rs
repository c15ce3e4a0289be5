use super::*;
use std::sync::OnceLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

static ROOT: OnceLock<CertificateDer<'static>> = OnceLock::new();

fn own_root() -> Vec<CertificateDer<'static>> {
    ROOT.get().into_iter().cloned().collect()
}

fn none() -> Vec<CertificateDer<'static>> {
    Vec::new()
}

#[tokio::test]
async fn keys_are_fetched_by_https_from_a_server_that_is_trusted() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    ROOT.set(made.cert.der().clone()).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut asked = vec![0; 1024];
            let count = stream.read(&mut asked).await.unwrap();
            assert!(asked[..count].starts_with(b"GET /keys HTTP/1.1\r\nhost: localhost:"));
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}";
            stream.write_all(answer).await.unwrap();
        }
    };
    let ask = async {
        assert!(fetch(&uri, none).await.unwrap_err().contains("certificate"), "an unknown authority");
        fetch(&uri, own_root).await
    };
    let keys = tokio::select! {
        keys = ask => keys.unwrap(),
        () = serve => unreachable!(),
    };
    assert!(keys.keys.is_empty());
}
