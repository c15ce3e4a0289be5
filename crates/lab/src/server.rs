//! The lab's socket: takes requests, runs exec, waits on behalf of whoever asks.

use crate::api::{Answer, Request};
use crate::capture;
use crate::cluster::{ExecTarget, Input};
use crate::spawn;
use nix::sys::signal::Signal;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use trysail_base::tasks::Tasks;

/// The longest request, bytes.
const LONGEST: u64 = 64 << 20;

/// The one capture that may run.
type Captures = Arc<Mutex<Option<capture::Running>>>;

/// Serves the socket until the tasks stop. `down` resolves who waits for the end of the lab.
pub fn serve(
    listener: UnixListener,
    inputs: mpsc::Sender<Input>,
    changes: watch::Receiver<u64>,
    down: watch::Sender<bool>,
    tasks: &Tasks,
) {
    let (owner, captures) = (tasks.clone(), Captures::default());
    tasks.spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            // An abstract socket has no file permissions: only the lab's own user may ask.
            if !stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::getuid().as_raw()) {
                tracing::warn!("a request of another user was refused");
                continue;
            }
            let client = Client {
                capture: captures.clone(),
                inputs: inputs.clone(),
                changes: changes.clone(),
                down: down.clone(),
            };
            owner.spawn(async move {
                if let Err(error) = client.serve(stream).await {
                    tracing::debug!(%error, "a request failed");
                }
            });
        }
    });
}

struct Client {
    capture: Captures,
    inputs: mpsc::Sender<Input>,
    changes: watch::Receiver<u64>,
    down: watch::Sender<bool>,
}

impl Client {
    async fn serve(mut self, mut stream: UnixStream) -> io::Result<()> {
        let mut length = [0; 8];
        let received = stream
            .async_io(Interest::READABLE, || trysail_netns::fd_pass::recv_with(stream.as_raw_fd(), &mut length))
            .await;
        let (got, descriptors) = received?;
        stream.read_exact(length.get_mut(got..).unwrap_or_default()).await?;
        let length = u64::from_be_bytes(length);
        if length > LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        stream.read_exact(&mut body).await?;
        let answer = match serde_json::from_slice::<Request>(&body) {
            Ok(request) => self.answer(request, descriptors, &mut stream).await,
            Err(error) => Answer::error(format!("the request cannot be read: {error}")),
        };
        let bytes = serde_json::to_vec(&answer)?;
        stream.write_all(&(bytes.len() as u64).to_be_bytes()).await?;
        stream.write_all(&bytes).await?;
        stream.shutdown().await
    }

    async fn answer(&mut self, request: Request, descriptors: Vec<OwnedFd>, stream: &mut UnixStream) -> Answer {
        match request {
            Request::Down => {
                self.down.send_replace(true);
                Answer::ok("stopping")
            }
            Request::WaitReady { timeout_s } | Request::RolloutStatus { timeout_s, .. } => {
                let limit = Duration::from_secs(timeout_s);
                let mut last = Answer::error("timed out");
                let waited = tokio::time::timeout(limit, self.until_done(&request, &mut last)).await;
                if waited.is_err() {
                    last.code = 1;
                    last.errors.push(format!("error: timed out after {timeout_s} s"));
                }
                last
            }
            Request::Exec { target, command } => {
                let (reply, found) = oneshot::channel();
                if self.inputs.send(Input::Find(target, reply)).await.is_err() {
                    return Answer::error("the lab is stopping");
                }
                match found.await {
                    Ok(Ok(target)) => exec(target, &command, descriptors, stream).await,
                    Ok(Err(error)) => Answer::error(error),
                    Err(_) => Answer::error("the lab is stopping"),
                }
            }
            Request::CaptureStart { marker } => {
                let started = capture::start(marker);
                match (started, self.capture.lock().await) {
                    (Ok(running), mut slot) => {
                        *slot = Some(running);
                        Answer::ok("capturing")
                    }
                    (Err(error), _) => Answer::error(format!("error: the fabric cannot be captured: {error}")),
                }
            }
            Request::CaptureStop => {
                let Some(running) = self.capture.lock().await.take() else {
                    return Answer::error("error: nothing is captured");
                };
                match tokio::task::spawn_blocking(move || running.finish()).await {
                    Ok(Ok(seen)) => Answer::ok(serde_json::to_value(seen).unwrap_or_default()),
                    Ok(Err(error)) => Answer::error(format!("error: the capture failed: {error}")),
                    Err(error) => Answer::error(error.to_string()),
                }
            }
            other => self.ask(other).await,
        }
    }

    async fn ask(&self, request: Request) -> Answer {
        let (reply, answer) = oneshot::channel();
        if self.inputs.send(Input::Ask((request, reply))).await.is_err() {
            return Answer::error("the lab is stopping");
        }
        answer.await.unwrap_or_else(|_| Answer::error("the lab is stopping"))
    }

    /// Asks again at each change until the answer is no longer "not yet" (code 2).
    async fn until_done(&mut self, request: &Request, last: &mut Answer) {
        loop {
            self.changes.mark_unchanged();
            *last = self.ask(request.clone()).await;
            if last.code != 2 || self.changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Runs a command in a container with the caller's own streams; it is killed when the caller goes away.
async fn exec(target: ExecTarget, command: &[String], descriptors: Vec<OwnedFd>, stream: &mut UnixStream) -> Answer {
    let ExecTarget { context, pid, container } = target;
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Answer::error("exec needs three streams");
    };
    let spec = context.pod.spec.as_ref().and_then(|s| s.containers.get(container));
    let Some(start) = spec.map(|c| context.start_command(c, command)) else {
        return Answer::error("the container is not there");
    };
    let start = match start {
        Ok(start) => start,
        Err(error) => {
            return Answer { code: 127, errors: vec![format!("error: {error}")], value: serde_json::Value::Null };
        }
    };
    let streams = [Stdio::from(stdin), Stdio::from(stdout), Stdio::from(stderr)];
    let mut child = match spawn::beside(&context.ns, pid, &start, streams) {
        Ok(child) => child,
        Err(error) => {
            return Answer { code: 126, errors: vec![format!("error: {error}")], value: serde_json::Value::Null };
        }
    };
    let mut byte = [0];
    let status = tokio::select! {
        status = child.wait() => status,
        _ = stream.read(&mut byte) => {
            if let Some(pid) = child.id() {
                spawn::signal(pid, Signal::SIGKILL);
            }
            child.wait().await
        }
    };
    match status {
        Ok(status) => {
            use std::os::unix::process::ExitStatusExt;
            let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
            Answer { code, errors: Vec::new(), value: serde_json::Value::Null }
        }
        Err(error) => Answer::error(error.to_string()),
    }
}
