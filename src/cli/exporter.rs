//! `lockmod exporter`: metrics of all nodes over HTTP.
//!
//! Everything is bounded: the number of connections, the time of each, and the load on the nodes,
//! which are asked at most once a second, however many clients ask here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::args::Exporter;
use super::failure::Failure;
use super::signals::Signals;
use super::{metrics, out};
use crate::client::Locker;

/// The most connections at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// How long a request may take to arrive.
const HEADER_MAX: Duration = Duration::from_secs(2);
/// How long a connection may live.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// The pause after a failed accept, for example because descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an answer is used again for other clients.
const FRESH: Duration = Duration::from_secs(1);
/// The content type of Prometheus's text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn exporter(args: Exporter) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let locker = args.connection.locker()?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Failure::new(Failure::FAILED, format!("cannot listen on {}: {error}", args.listen))
    })?;
    out::line(format_args!("metrics at http://{}/metrics", listener.local_addr()?))?;
    let source = Arc::new(Source { locker, cluster: args.cluster, last: Mutex::new(None) });
    tokio::select! {
        () = serve(listener, source) => {}
        _ = signals.next() => out::remove_echo(),
    }
    Ok(())
}

/// Where the metrics come from.
struct Source {
    locker: Locker,
    /// A name for these nodes together.
    cluster: Option<String>,
    last: Mutex<Option<(Instant, Result<Bytes, String>)>>,
}

impl Source {
    /// The metrics, as text. Clients that ask at the same time share one survey.
    async fn text(&self) -> Result<Bytes, String> {
        let mut last = self.last.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let survey = self.locker.survey(0).await;
        let text = metrics::text(&survey, self.cluster.as_deref());
        let text = text.map(Bytes::from).map_err(|error| error.to_string());
        last.insert((Instant::now(), text)).1.clone()
    }
}

async fn serve(listener: TcpListener, source: Arc<Source>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            // If a client disconnects or takes too long, there is nothing to do.
            let _ = timeout(CONNECTION_MAX, attend(stream, source)).await;
            drop(place);
        });
    }
}

async fn attend(stream: TcpStream, source: Arc<Source>) -> hyper::Result<()> {
    let answer = service_fn(move |request| {
        let source = Arc::clone(&source);
        async move { Ok::<_, Infallible>(respond(&request, &source).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

async fn respond(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match source.text().await {
            Ok(text) => plain(StatusCode::OK, text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        "/" => plain(StatusCode::OK, "The metrics are at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "The metrics are at /metrics\n"),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(TEXT));
    response
}
