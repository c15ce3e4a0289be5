//! The cluster's resolver on each node: names of services, and nothing else.

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType, rdata};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use trysail_base::tasks::Tasks;

/// Seconds that an answer may be kept.
const TTL: u32 = 5;

/// Full names, without the last dot and in lower case, to addresses. A name with no address exists and has no answer.
pub type Names = BTreeMap<String, Vec<Ipv4Addr>>;

/// Serves `names` until the tasks stop.
pub fn serve(udp: UdpSocket, tcp: TcpListener, names: watch::Receiver<Arc<Names>>, tasks: &Tasks) {
    let for_udp = names.clone();
    tasks.spawn(async move {
        let mut buffer = [0; 1500];
        loop {
            let Ok((length, from)) = udp.recv_from(&mut buffer).await else { continue };
            let reply = answer(buffer.get(..length).unwrap_or_default(), &for_udp.borrow());
            send(&udp, reply, from).await;
        }
    });
    let owner = tasks.clone();
    tasks.spawn(async move {
        loop {
            let Ok((stream, _)) = tcp.accept().await else { continue };
            let names = names.clone();
            owner.spawn(async move {
                if let Err(error) = over_tcp(stream, names).await {
                    tracing::debug!(%error, "a resolver connection failed");
                }
            });
        }
    });
}

async fn send(udp: &UdpSocket, reply: Option<Vec<u8>>, to: SocketAddr) {
    let Some(reply) = reply else { return };
    if let Err(error) = udp.send_to(&reply, to).await {
        tracing::debug!(%error, %to, "an answer could not be sent");
    }
}

async fn over_tcp(mut stream: TcpStream, names: watch::Receiver<Arc<Names>>) -> std::io::Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut query = vec![0; length.into()];
        stream.read_exact(&mut query).await?;
        let Some(reply) = answer(&query, &names.borrow().clone()) else { return Ok(()) };
        stream.write_u16(reply.len().try_into().map_err(std::io::Error::other)?).await?;
        stream.write_all(&reply).await?;
    }
}

/// The answer to one query; none to what is no query.
pub fn answer(query: &[u8], names: &Names) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    if query.metadata.message_type != MessageType::Query || query.metadata.op_code != OpCode::Query {
        return None;
    }
    let mut reply = Message::response(query.metadata.id, OpCode::Query);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = true;
    let mut code = ResponseCode::NXDomain;
    for question in &query.queries {
        reply.add_query(question.clone());
        let name = question.name().to_ascii().to_ascii_lowercase();
        let Some(addresses) = names.get(name.trim_end_matches('.')) else { continue };
        code = ResponseCode::NoError;
        if question.query_class() == DNSClass::IN && question.query_type() == RecordType::A {
            for address in addresses {
                reply.add_answer(Record::from_rdata(question.name().clone(), TTL, RData::A(rdata::A(*address))));
            }
        }
    }
    reply.metadata.response_code = code;
    reply.to_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    fn ask(name: &str, kind: RecordType) -> (ResponseCode, usize) {
        let names = Names::from([
            ("echo.ns.svc.cluster.local".to_owned(), vec![Ipv4Addr::new(10, 96, 0, 20)]),
            ("empty.ns.svc.cluster.local".to_owned(), vec![]),
        ]);
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let reply = Message::from_vec(&answer(&query.to_vec().unwrap(), &names).unwrap()).unwrap();
        (reply.metadata.response_code, reply.answers.len())
    }

    #[test]
    fn services_have_addresses_and_other_names_do_not_exist() {
        assert_eq!(ask("Echo.ns.svc.cluster.local.", RecordType::A), (ResponseCode::NoError, 1));
        assert_eq!(ask("echo.ns.svc.cluster.local.", RecordType::AAAA), (ResponseCode::NoError, 0));
        assert_eq!(ask("empty.ns.svc.cluster.local.", RecordType::A), (ResponseCode::NoError, 0));
        assert_eq!(ask("echo.", RecordType::A), (ResponseCode::NXDomain, 0));
        assert!(answer(b"nonsense", &Names::new()).is_none());
    }
}
