//! One HTTP GET from inside a namespace.

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use trysail_netns::ns::NetNs;
use trysail_netns::socket::connect_in;

/// Status and body of a GET. `headers` are added to those that every request has.
pub async fn get(
    ns: &NetNs,
    to: SocketAddr,
    path: &str,
    headers: &[(String, String)],
) -> Result<(u16, String), String> {
    let stream = connect_in(ns, to).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let mut request = Request::get(path)
        .header("host", to.to_string())
        .header("user-agent", "kube-probe/lab")
        .header("connection", "close");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end in the same moment as the answer: what has come of it is still there.
        _ = &mut connection => answer.await,
    }
}
