use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

#[tokio::test]
async fn a_half_close_is_passed_on_and_the_answer_still_arrives() {
    let ((mut client, near), (far, mut server)) = (pair().await, pair().await);
    let moved = Moved::default();
    let answer = vec![7u8; 3 * CHUNK + 1];
    let body = answer.clone();
    let talk = async {
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        got
    };
    let serve = async {
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        server.write_all(&body).await.unwrap();
        server.shutdown().await.unwrap();
        got
    };
    let (end, got, asked) = tokio::join!(relay(tcp(near), tcp(far), &moved), talk, serve);
    end.unwrap();
    assert_eq!((asked.as_slice(), got == answer), (b"question".as_slice(), true));
    assert_eq!(moved.forward.load(Ordering::Relaxed), 8);
    assert_eq!(moved.back.load(Ordering::Relaxed), answer.len() as u64);
}

#[tokio::test]
async fn a_reset_on_one_side_is_a_reset_on_the_other() {
    let ((mut client, near), (far, server)) = (pair().await, pair().await);
    reset_on_close(&server);
    drop(server);
    let moved = Moved::default();
    assert!(relay(tcp(near), tcp(far), &moved).await.is_err());
    let mut byte = [0];
    assert_eq!(client.read(&mut byte).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}
