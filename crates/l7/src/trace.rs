//! Trace context (W3C Trace Context, B3) carried on, and spans to an OTLP receiver (OTLP/HTTP, JSON).

use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use trysail_base::tasks::Tasks;

/// Spans that may wait to be sent; more are dropped and counted.
const QUEUE: usize = 2048;
/// How many are sent together, and how long the first of them waits.
const BATCH: usize = 256;
const WAIT: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(5);

/// Where a request stands in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Trace, 32 hexadecimal digits.
    pub trace: String,
    /// This hop's span, 16 digits.
    pub span: String,
    /// The span that called, if there was one.
    pub parent: Option<String>,
    /// Whether it is recorded.
    pub sampled: bool,
    b3: bool,
}

fn hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit()) && text.bytes().any(|b| b != b'0')
}

fn new_id(bytes: usize) -> String {
    let bits: u128 = rand::random::<u128>() | 1;
    let text = format!("{bits:032x}");
    text.get(32 - bytes * 2..).unwrap_or_default().to_owned()
}

impl Context {
    /// Follows what the headers say, else begins a trace; `sample` decides for a new one.
    pub fn follow(headers: &HeaderMap, sample: bool) -> Self {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let span = new_id(8);
        if let Some(parts) = text("traceparent").map(|t| t.split('-').collect::<Vec<_>>())
            && let [_, trace, parent, flags] = parts.as_slice()
            && hex(trace, 32)
            && hex(parent, 16)
        {
            let sampled = u8::from_str_radix(flags, 16).is_ok_and(|f| f & 1 == 1);
            return Self { trace: (*trace).to_owned(), span, parent: Some((*parent).to_owned()), sampled, b3: false };
        }
        let single = text("b3").map(|t| t.split('-').map(str::to_owned).collect::<Vec<_>>());
        let b3 = match single.as_deref() {
            Some([trace, parent, rest @ ..]) => {
                Some((trace.clone(), parent.clone(), rest.first().is_some_and(|s| s == "1" || s == "d")))
            }
            _ => text("x-b3-traceid")
                .zip(text("x-b3-spanid"))
                .map(|(t, s)| (t.to_owned(), s.to_owned(), text("x-b3-sampled") == Some("1"))),
        };
        if let Some((trace, parent, sampled)) = b3
            && (hex(&trace, 32) || hex(&trace, 16))
            && hex(&parent, 16)
        {
            return Self { trace: format!("{trace:0>32}"), span, parent: Some(parent), sampled, b3: true };
        }
        Self { trace: new_id(16), span, parent: None, sampled: sample, b3: false }
    }

    /// Says to the next hop where it stands, in the form in which it was said here.
    pub fn pass_on(&self, headers: &mut HeaderMap) {
        let flag = u8::from(self.sampled);
        let mut put = |name: &'static str, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        if self.b3 {
            put("x-b3-traceid", &self.trace);
            put("x-b3-spanid", &self.span);
            put("x-b3-sampled", if self.sampled { "1" } else { "0" });
            if let Some(parent) = &self.parent {
                put("x-b3-parentspanid", parent);
            }
            headers.remove("b3");
        } else {
            put("traceparent", &format!("00-{}-{}-{flag:02x}", self.trace, self.span));
        }
    }
}

/// A finished span.
#[derive(Debug)]
pub struct Span {
    /// Where it stands.
    pub context: Context,
    /// Name.
    pub name: String,
    /// Server or client.
    pub server: bool,
    /// Start.
    pub start: SystemTime,
    /// Length.
    pub length: Duration,
    /// Attributes.
    pub attributes: Vec<(&'static str, String)>,
    /// Failed.
    pub error: bool,
}

/// Sends spans; clones share it.
#[derive(Clone)]
pub struct Tracer {
    sender: Option<mpsc::Sender<Span>>,
    share: f64,
}

impl Tracer {
    /// Sends to `endpoint` (`http://host:port`), nowhere when it is empty. `service` names this proxy.
    pub fn new(endpoint: &str, share: f64, service: &str, tasks: &Tasks) -> Self {
        if endpoint.is_empty() {
            return Self { sender: None, share: 0.0 };
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        tasks.spawn(send(endpoint.to_owned(), service.to_owned(), receiver));
        Self { sender: Some(sender), share }
    }

    /// Whether a new trace is recorded.
    pub fn samples(&self) -> bool {
        self.sender.is_some() && rand::random::<f64>() * 100.0 < self.share
    }

    /// Takes a finished span.
    pub fn finish(&self, span: Span) {
        if let Some(sender) = self.sender.as_ref().filter(|_| span.context.sampled)
            && sender.try_send(span).is_err()
        {
            tracing::debug!("a span was dropped: the receiver is too slow");
        }
    }

    /// Whether spans go anywhere.
    pub fn is_on(&self) -> bool {
        self.sender.is_some()
    }
}

async fn send(endpoint: String, service: String, mut spans: mpsc::Receiver<Span>) {
    let mut batch = Vec::new();
    while spans.recv_many(&mut batch, BATCH).await > 0 {
        tokio::time::sleep(WAIT).await;
        while batch.len() < BATCH
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let body = document(&service, &std::mem::take(&mut batch)).to_string();
        match tokio::time::timeout(LIMIT, post(&endpoint, body)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::warn!(endpoint, why, "spans could not be sent"),
            Err(_) => tracing::warn!(endpoint, "spans could not be sent in time"),
        }
    }
}

async fn post(endpoint: &str, body: String) -> Result<(), String> {
    use http_body_util::Full;
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let authority = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
    let stream = tokio::net::TcpStream::connect(authority).await.map_err(|e| text(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    let request = http::Request::post("/v1/traces")
        .header("host", authority)
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(body)))
        .map_err(|e| text(&e))?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    let answered = tokio::select! {
        biased;
        answered = &mut answer => answered,
        // The connection may end in the same moment as the answer: what has come of it is still there.
        _ = connection => answer.await,
    };
    let status = answered.map_err(|e| text(&e))?.status();
    if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
}

fn document(service: &str, spans: &[Span]) -> Value {
    let nanos = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let attribute = |(key, value): &(&str, String)| json!({"key": key, "value": {"stringValue": value}});
    let one = |s: &Span| {
        json!({
            "traceId": s.context.trace,
            "spanId": s.context.span,
            "parentSpanId": s.context.parent.clone().unwrap_or_default(),
            "name": s.name,
            "kind": if s.server { 2 } else { 3 },
            "startTimeUnixNano": nanos(s.start),
            "endTimeUnixNano": nanos(s.start + s.length),
            "attributes": s.attributes.iter().map(attribute).collect::<Vec<_>>(),
            "status": {"code": if s.error { 2 } else { 0 }},
        })
    };
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute(&("service.name", service.to_owned()))]},
        "scopeSpans": [{"scope": {"name": "trysail"}, "spans": spans.iter().map(one).collect::<Vec<_>>()}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn a_trace_is_followed_in_the_form_in_which_it_came() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (given, passed) in [
            (headers(&[("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]), "traceparent"),
            (headers(&[("b3", "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1")]), "x-b3-traceid"),
            (
                headers(&[("x-b3-traceid", trace), ("x-b3-spanid", "00f067aa0ba902b7"), ("x-b3-sampled", "1")]),
                "x-b3-traceid",
            ),
        ] {
            let context = Context::follow(&given, false);
            assert_eq!(
                (&*context.trace, context.parent.as_deref(), context.sampled),
                (trace, Some("00f067aa0ba902b7"), true)
            );
            let mut out = HeaderMap::new();
            context.pass_on(&mut out);
            assert!(out.get(passed).unwrap().to_str().unwrap().contains(trace), "{out:?}");
        }
        for bad in ["", "00-zz-zz-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
            assert_eq!(Context::follow(&headers(&[("traceparent", bad)]), true).parent, None, "{bad}");
        }
    }
}
