//! Connections: how many there are, how long they may take, and how they end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::ServiceExt;

use crate::app::App;
use crate::catalog::HostedModel;
use crate::connections::{Connection, Connections};
use crate::guard::Peer;
use crate::options::{ServerOptions, StartError};
use crate::routes;

/// Threads that pass bytes on; what computes has its own.
const THREADS: usize = 2;
/// Threads that read requests with large bodies, so that no other connection waits for it.
const THREADS_OF_LARGE: usize = 2;
/// How long a thread that computes stays for the next request: as long as the server. One that was started once need not be
/// started where memory is short.
const KEEP_ALIVE: Duration = Duration::from_secs(u32::MAX as u64);
/// Bytes of the head of a request, at most.
const HEAD_BYTES: usize = 64 << 10;

/// The answer to a connection that there is no room for.
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Ends a server. Copies end the same one.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Shutdown {
    /// Takes no new requests; answers may go on for a while.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

/// Serves `models` until `shutdown` begins. The first of them is loaded at once; then `ready` is called with the address,
/// and requests are taken.
///
/// # Errors
/// If an option makes no sense, the first model can't be loaded, or the address cannot be listened on.
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
        ready(address);
        accept(&listener, &app, shutdown.0.subscribe()).await;
        Ok(())
    });
    // Threads that compute end with their answers, which are cancelled where connections were closed.
    of_large.shutdown_timeout(time_out);
    runtime.shutdown_timeout(time_out);
    done
}

/// Takes connections until the server is to end, then waits for those that are open.
async fn accept(listener: &TcpListener, app: &Arc<App>, mut ends: watch::Receiver<bool>) {
    let router = routes::router(app);
    let connections = Connections::new(app.options.connections);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ends.wait_for(|ends| *ends) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!("cannot take a connection: {error}");
                // Out of files, say: until some are closed.
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some((open, ended)) = connections.open(peer.ip()) else {
            tracing::debug!("{peer} has too many connections");
            // As far as it is taken at once: nothing waits for a client that is refused.
            let _ = stream.try_write(REFUSAL.as_bytes());
            continue;
        };
        let (router, of_service) = (router.clone(), Arc::clone(&open));
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            let served = of_service.begin();
            request.extensions_mut().insert(Peer(peer));
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
    let _ = timeout(app.options.shutdown_time_out, graceful.shutdown()).await;
}

/// A connection whose other end has to send heads and to take what is written within a time.
struct TimedStream {
    stream: TcpStream,
    open: Arc<Connection>,
    time_out: Duration,
    head_time_out: Duration,
    /// When writing fails, if nothing is taken until then.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When reading fails, if the head of the next request has not arrived until then.
    head_deadline: Option<Pin<Box<Sleep>>>,
    /// The step of the connection that this deadline is for.
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

    /// Waits for the deadline where nothing could be written.
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
        // The time of a body is bounded where it is read.
        if is_busy {
            return read;
        }
        if read.is_ready() {
            // An idle connection may send another request later, whose time begins with its first byte.
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
