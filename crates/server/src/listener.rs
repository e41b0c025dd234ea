//! The listener: accepts connections, and applies limits, timeouts and the shutdown.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::Uri;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::ServiceExt;
use triad_frontend::machine;

use crate::app::App;
use crate::connections::{Connection, Connections, within_files};
use crate::guard::{HEAD_BYTES, Peer};
use crate::hosted::HostedModel;
use crate::housekeeping;
use crate::options::{ServerOptions, StartError};
use crate::routes;
use crate::unread::RequestBody;

/// Threads that do I/O. Computation has its own threads.
const THREADS: usize = 2;
/// Threads that handle requests with large bodies, so that these don't delay other connections.
const THREADS_OF_LARGE: usize = 2;
/// The time that an idle thread of computation is kept: as long as the server runs. A kept thread needs no start when
/// memory is low.
const KEEP_ALIVE: Duration = Duration::from_secs(u32::MAX as u64);

/// The time after which a connection is accepted again that the system had no room for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The response to a connection beyond the limits.
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// A handle that stops a server. Clones stop the same server.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Shutdown {
    /// Stops accepting requests. Running requests may continue until the shutdown timeout.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

/// Serves `models` until `shutdown` begins. Loads the first model, calls `ready` with the address, and then accepts
/// requests.
///
/// # Errors
/// If an option is invalid, the first model can't be loaded, or the server can't listen on the address.
pub fn serve(
    options: ServerOptions,
    models: Vec<HostedModel>,
    shutdown: &Shutdown,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), StartError> {
    options.check()?;
    let threads = |count| {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let threads = threads
            .worker_threads(count)
            .thread_keep_alive(KEEP_ALIVE)
            .enable_all()
            .build();
        threads.map_err(|source| StartError::Threads { source })
    };
    let (runtime, of_large) = (threads(THREADS)?, threads(THREADS_OF_LARGE)?);
    let handle = of_large.handle().clone();
    let time_out = options.shutdown_time_out;
    let done = runtime.block_on(async {
        let address = SocketAddr::new(options.host, options.port);
        let failed = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let app = tokio::task::spawn_blocking(|| App::new(options, models, handle)).await;
        let app = Arc::new(app.map_err(|error| StartError::Threads {
            source: error.into(),
        })??);
        app.registry().keep_first();
        tokio::spawn(housekeeping::run(Arc::downgrade(app.registry())));
        tokio::spawn(housekeeping::drop_stored(Arc::downgrade(app.stored())));
        ready(address);
        accept(listener, &app, shutdown.0.subscribe()).await;
        Ok(())
    });
    // Threads of computation end with their requests, which are cancelled when their connections close.
    of_large.shutdown_timeout(time_out);
    runtime.shutdown_timeout(time_out);
    done
}

/// Accepts connections until the shutdown, then waits for the open ones.
async fn accept(listener: TcpListener, app: &Arc<App>, mut ends: watch::Receiver<bool>) {
    let router = routes::router(app);
    let most = within_files(app.options.connections, machine::open_files());
    let connections = Connections::new(most);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ends.wait_for(|ends| *ends) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Its client has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                tracing::debug!("cannot take a connection: {error}");
                // The process may be out of file descriptors, for example. Close one, and wait until it is closed.
                connections.make_room();
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((open, ended)) = connections.open(peer.ip()) else {
            tracing::debug!("{peer} has too many connections");
            // Write only what the socket accepts at once, so that a refused client never delays others.
            let _ = stream.try_write(REFUSAL.as_bytes());
            continue;
        };
        let (router, of_service, of_app) = (router.clone(), Arc::clone(&open), Arc::clone(app));
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            let served = of_service.begin();
            request.extensions_mut().insert(Peer(peer));
            *request.uri_mut() = normal_uri(request.uri());
            let (parts, body) = request.into_parts();
            let body = RequestBody::new(
                body,
                &parts.headers,
                Arc::clone(&of_service),
                &of_app.options,
            );
            let request = hyper::Request::from_parts(parts, body);
            let answer = router.clone().oneshot(request);
            async move {
                let answer = answer.await?;
                Ok::<_, Infallible>(answer.map(|body| served.until_end_of(body)))
            }
        });
        let time_out = app.options.client_time_out;
        let _ = stream.set_nodelay(true);
        let stream = TimedStream::new(stream, open, &app.options);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(time_out)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                end = connection => if let Err(error) = end {
                    tracing::debug!("the connection of {peer} ended: {error}");
                },
                _ = ended => tracing::debug!("the connection of {peer} makes room for another one"),
            }
        });
    }
    // Clients that come now are refused, and need not wait for the end of the others.
    drop(listener);
    let _ = timeout(app.options.shutdown_time_out, graceful.shutdown()).await;
}

/// Returns `uri` without double and trailing slashes in its path, which clients write that join a base address and a
/// path.
fn normal_uri(uri: &Uri) -> Uri {
    let path = uri.path();
    let is_normal = !path.contains("//") && (path.len() == 1 || !path.ends_with('/'));
    if is_normal || !path.starts_with('/') {
        return uri.clone();
    }
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let path = format!("/{}", parts.join("/"));
    let query = uri
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    // A path and a query that were valid stay valid.
    Uri::try_from(path + &query).unwrap_or_else(|_| uri.clone())
}

/// A connection with timeouts for the client to send heads and to read responses.
struct TimedStream {
    stream: TcpStream,
    open: Arc<Connection>,
    time_out: Duration,
    head_time_out: Duration,
    /// The time at which a write fails if the client reads nothing until then.
    deadline: Option<Pin<Box<Sleep>>>,
    /// The time at which a read fails if the head of the next request is not complete.
    head_deadline: Option<Pin<Box<Sleep>>>,
    /// The step of the connection that `head_deadline` belongs to.
    step: u64,
}

impl TimedStream {
    fn new(stream: TcpStream, open: Arc<Connection>, options: &ServerOptions) -> Self {
        let head_time_out = options.head_time_out;
        Self {
            stream,
            open,
            time_out: options.client_time_out,
            head_time_out,
            deadline: None,
            head_deadline: Some(Box::pin(sleep(head_time_out))),
            step: 0,
        }
    }

    /// Applies the write deadline while a write is pending.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let time_out = self.time_out;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + time_out)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let (step, is_busy) = self.open.steps();
        if step != self.step {
            (self.step, self.head_deadline) = (step, None);
        }
        // The time of a body is limited where it is read.
        if is_busy || self.open.reads_rest() {
            return read;
        }
        if read.is_ready() {
            // An idle connection may send its next request at any time: the deadline starts with the first byte.
            if buffer.filled().len() > before && self.head_deadline.is_none() {
                self.head_deadline = Some(Box::pin(sleep(self.head_time_out)));
            }
            return read;
        }
        match &mut self.head_deadline {
            Some(deadline) => {
                ready!(deadline.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.timed(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
