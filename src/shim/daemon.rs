//! The long-lived process: serves containerd's requests for a group of containers until none is left.
//!
//! It ends when the service says so, which containerd asks for after the last container. Three ends are its own: `start` was
//! killed before containerd knew of it; nobody has a use for it, as when containerd died between `start` and the first
//! container; or it is told to (SIGTERM) and nothing runs any more. Being told while something runs does not end it: the exit
//! codes and output of what runs would be lost.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use containerd_shim_protos::shim_async::{Task, create_task};
use containerd_shim_protos::ttrpc::r#async::transport::Listener;
use containerd_shim_protos::ttrpc::r#async::{Server, Service};
use futures_core::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, Sleep, interval, sleep, timeout};

use super::events::Events;
use super::log::Log;
use super::moves::Moves;
use super::newcomers::Newcomers;
use super::reaper::Reaper;
use super::socket::Served;
use super::thread::{STACK, blocking};
use super::{ShimError, bootstrap, socket};
use crate::sys;

/// How long to stay with no container and no connection. containerd connects right after `start`, and again within seconds
/// when it has been started anew.
pub const IDLE: Duration = Duration::from_secs(300);
/// How long events may take that are not sent yet when all else is done.
const FLUSH: Duration = Duration::from_secs(5);
/// How long answers may take that are being written at the end.
const ANSWERS: Duration = Duration::from_secs(1);
/// How long it may take until the connections are taken that are in the queue, and how often that is looked at.
const QUEUE: Duration = Duration::from_millis(10);
const QUEUE_LOOK: Duration = Duration::from_millis(1);
/// How long to try at the end to take all connections, and how often it is looked for a container that is to come.
const TAKING: Duration = Duration::from_secs(30);
const NEWCOMER_LOOK: Duration = Duration::from_millis(50);
/// How long another process may hold the socket's lock at the end.
const LOCK: Duration = Duration::from_secs(2);
/// How often it is looked whether something still runs, after SIGTERM.
const STOPPING: Duration = Duration::from_millis(500);
/// How long no connection is taken after one could not be (no descriptors left).
const PAUSE: Duration = Duration::from_millis(100);
/// The names of the task service: the messages of both versions are the same on the wire.
const SERVICES: [&str; 2] = ["containerd.task.v2.Task", "containerd.task.v3.Task"];

/// What serves the requests.
pub trait Host: Task + Send + Sync + 'static {
    /// Returns when containerd has asked for the end, and may have it.
    fn ended(&self) -> impl Future<Output = ()> + Send;
    /// How many containers there are, those too that have ended, until containerd has deleted them.
    fn containers(&self) -> usize;
    /// How many processes of containers have not ended.
    fn running(&self) -> usize;
    /// Makes no container from now on, unless one is being made or runs; whether that is so.
    fn close(&self) -> bool;
}

/// What the process is started with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// containerd's namespace.
    pub namespace: String,
    /// The id of the container that it was started for.
    pub id: String,
    /// Where containerd takes events.
    pub ttrpc_address: String,
    /// The socket, which is bound and listens.
    pub socket: PathBuf,
    /// The bundle of that container: the log is there.
    pub bundle: PathBuf,
    /// Log more.
    pub debug: bool,
    /// Keep the containers on cores of their own.
    pub core_scheduling: bool,
    /// See [`IDLE`].
    pub idle: Duration,
}

/// What a service is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where its events go in.
    pub events: Events,
    /// What reaps its children.
    pub reaper: Reaper,
    /// What is going to be moved between cgroups.
    pub moves: Moves,
    /// Which containers are to come.
    pub newcomers: Newcomers,
}

/// Serves until the end. The process must have no threads yet; `listener` is the socket, and `told` is told whether it runs.
///
/// # Errors
/// Where it can't begin to serve; `told` has been told then, too.
pub fn serve<H: Host>(
    setup: &Setup,
    listener: OwnedFd,
    told: OwnedFd,
    make: impl FnOnce(Parts) -> Arc<H>,
) -> Result<(), ShimError> {
    let told = File::from(told);
    sys::process::thrifty_heap();
    // Each process takes some ten descriptors, and a pod can have hundreds of processes.
    sys::open_files::raise();
    let begun = begin(setup);
    let (runtime, served) = match begun {
        Ok(begun) => begun,
        Err(err) => return Err(refuse(told, err)),
    };
    runtime.block_on(run(setup, listener, served, told, make))?;
    // What a thread still waits for must not keep the process.
    runtime.shutdown_background();
    Ok(())
}

fn begin(setup: &Setup) -> Result<(tokio::runtime::Runtime, Served), ShimError> {
    let log = Log::to(&setup.bundle.join("log"), &setup.id, setup.debug);
    // Only the first call in a process succeeds, and there is one.
    let _ = tracing::subscriber::set_global_default(log);
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "the shim is broken")));
    // A process that leads its group has left its parent's already.
    let _ = rustix::process::setsid();
    let subreaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    subreaper.map_err(|errno| ShimError::io("prctl", "PR_SET_CHILD_SUBREAPER")(errno.into()))?;
    if setup.core_scheduling {
        let own = sys::process::own_core_scheduling();
        own.map_err(|err| ShimError::io("prctl", "PR_SCHED_CORE")(err.into()))?;
    }
    let served = Served::of(&setup.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(ShimError::io("start", "the runtime"))?;
    Ok((runtime, served))
}

fn refuse(mut told: impl Write, err: ShimError) -> ShimError {
    // Who asked may be gone; the error goes on its way.
    let _ = write!(told, "{err}");
    err
}

async fn run<H: Host>(
    setup: &Setup,
    listener: OwnedFd,
    served: Served,
    mut told: File,
    make: impl FnOnce(Parts) -> Arc<H>,
) -> Result<(), ShimError> {
    let connections = Arc::new(Connections::default());
    // The first container's process: containerd asks for it as soon as it is told that this runs.
    let moves = Moves::default();
    moves.expect();
    let newcomers = Newcomers::default();
    let begun = (|| {
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        let queue = Queue(OwnedFd::from(listener.try_clone()?));
        let (listener, count) = (UnixListener::from_std(listener)?, connections.clone());
        let incoming = Incoming { listener, count, newcomers: newcomers.clone(), pause: None };
        Ok((incoming, queue, Reaper::start()?, signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    })();
    let (incoming, queue, reaper, mut terminate, mut interrupt) = match begun {
        Ok(begun) => begun,
        Err(err) => return Err(refuse(told, ShimError::io("serve", &setup.socket)(err))),
    };
    let events = Events::start(&setup.ttrpc_address, &setup.namespace);
    let host = make(Parts { events: events.clone(), reaper, moves, newcomers: newcomers.clone() });
    let mut server = Server::new().register_service(services(&host)).add_listener(Listener::new(incoming));
    if let Err(err) = server.start().await {
        return Err(refuse(told, ShimError::io("serve", &setup.socket)(io::Error::other(err))));
    }
    // Whoever started this may have gone meanwhile; it serves all the same.
    let _ = told.write_all(bootstrap::RUNNING.as_bytes());
    let start = starter(told);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the shim serves");

    tokio::select! {
        () = host.ended() => tracing::info!("the last container is gone"),
        () = idle(setup.idle, || host.containers() > 0 || connections.open() > 0) => {
            tracing::info!("no container and no connection for {} s", setup.idle.as_secs());
        }
        () = forsaken(start, || host.containers() > 0 || connections.open() > 0) => {
            tracing::warn!("containerd was not told of this shim: who started it was killed");
        }
        () = stopped(&*host, &mut terminate, &mut interrupt) => tracing::info!("nothing runs: ended by a signal"),
    }

    // From here on whoever looks starts a server of its own.
    withdraw(served, &newcomers, &queue, &*host).await;
    drop(queue);
    // Where the lock was not to be had it stays, and what came meanwhile is served to its end.
    while !host.close() {
        sleep(STOPPING).await;
    }
    if !events.flush(FLUSH).await {
        tracing::error!("containerd was away: events are lost");
    }
    // Requests that wait for an end that does not come are left.
    let _ = timeout(ANSWERS, server.shutdown()).await;
    Ok(())
}

/// The service under each of its names.
fn services<H: Host>(host: &Arc<H>) -> HashMap<String, Service> {
    let both = SERVICES
        .iter()
        .map(|name| create_task(host.clone()).into_values().map(|service| ((*name).to_owned(), service)));
    both.flatten().collect()
}

/// Returns when there was no use for the process for `limit`.
async fn idle(limit: Duration, in_use: impl Fn() -> bool) {
    let mut ticks = interval(limit / 5);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut since = Instant::now();
    while since.elapsed() < limit {
        ticks.tick().await;
        if in_use() {
            since = Instant::now();
        }
    }
}

/// `start`, to be heard of again; none where it is of an older release, whose end of a pipe says nothing.
fn starter(told: File) -> Option<UnixStream> {
    let told = OwnedFd::from(told);
    // It reads to the end of what it is told.
    rustix::net::shutdown(&told, rustix::net::Shutdown::Write).ok()?;
    let start = std::os::unix::net::UnixStream::from(told);
    start.set_nonblocking(true).and_then(|()| UnixStream::from_std(start)).ok()
}

/// Returns when `start` has ended without a word, and nobody else has found the way here, as a containerd can that was killed
/// at the same time and finds the address in the bundle.
async fn forsaken(start: Option<UnixStream>, in_use: impl Fn() -> bool) {
    if let Some(mut start) = start {
        let word = start.read(&mut [0; 16]).await;
        // Its death is an error where it has not read what it was told.
        if !word.is_ok_and(|n| n > 0) && !in_use() {
            return;
        }
    }
    std::future::pending().await
}

/// Removes the socket. Before that `start` may have found it served and told containerd so: then there is another container to
/// be waited for, and another end. Once it is sure that there is none, none is made any more: it would be left behind.
///
/// containerd runs `delete` at the same time, and waits for it, as it waits for the lock: that is not held for long.
async fn withdraw<H: Host>(served: Served, newcomers: &Newcomers, queue: &Queue, host: &H) {
    let begun = Instant::now();
    loop {
        let socket = served.clone();
        let lock = match blocking(move || socket.lock(LOCK)).await {
            Ok(lock) => lock,
            Err(err) => return tracing::warn!(%err, "the socket stays"),
        };
        // Nobody can look now. Who looked before is in the queue, if not taken already.
        let known = queue.emptied(QUEUE).await || begun.elapsed() > TAKING;
        if known && !newcomers.expected() && host.close() {
            if let Err(err) = served.remove(lock) {
                tracing::warn!(%err, "the socket stays");
            }
            return;
        }
        if let Err(err) = served.leave(lock) {
            tracing::warn!(%err, "the socket's lock stays");
        }
        tracing::info!("containerd has been told of this shim again");
        sleep(NEWCOMER_LOOK).await;
        while newcomers.expected() && host.containers() == 0 {
            sleep(NEWCOMER_LOOK).await;
        }
        while host.containers() > 0 {
            sleep(STOPPING).await;
        }
    }
}

/// Returns when the process has been told to end and nothing runs.
async fn stopped<H: Host>(
    host: &H,
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    if host.running() > 0 {
        tracing::warn!(running = host.running(), "told to end: that has to wait for what runs");
    }
    while host.running() > 0 {
        sleep(STOPPING).await;
    }
}

/// How many connections are open.
#[derive(Debug, Default)]
struct Connections(AtomicUsize);

impl Connections {
    fn open(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The connections that wait to be taken: the listening socket once more, to look at.
struct Queue(OwnedFd);

impl Queue {
    /// Returns when none waits, at the latest after `limit`: whether none does. One that has been taken is counted by then:
    /// both happen in one step of this process's only thread.
    async fn emptied(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if self.is_empty() {
                return true;
            }
            if begun.elapsed() >= limit {
                return false;
            }
            sleep(QUEUE_LOOK).await;
        }
    }

    /// A connection is in the queue before connect(2) returns, and a listening socket is readable while its queue is not
    /// empty (unix(7), poll(2)).
    fn is_empty(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
    }
}

/// The connections, as they come.
struct Incoming {
    listener: UnixListener,
    count: Arc<Connections>,
    newcomers: Newcomers,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            match std::task::ready!(this.listener.poll_accept(cx)) {
                Ok((stream, _)) => {
                    let counts = (!socket::is_cleanup(&stream)).then(|| (this.count.clone(), this.newcomers.clone()));
                    return Poll::Ready(Some(Ok(Connection::new(stream, counts))));
                }
                // Without a pause a connection that can't be taken would be tried for ever, and nothing else done.
                Err(err) => {
                    tracing::warn!(%err, "a connection could not be taken");
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// A connection that counts while it is open, but for one of `delete`'s.
struct Connection {
    stream: UnixStream,
    count: Option<Arc<Connections>>,
    /// While nothing has been said on it.
    silent: Option<Newcomers>,
}

impl Connection {
    fn new(stream: UnixStream, counts: Option<(Arc<Connections>, Newcomers)>) -> Connection {
        let (count, silent) = counts.unzip();
        if let Some(count) = &count {
            count.0.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(newcomers) = &silent {
            newcomers.connected();
        }
        Connection { stream, count, silent }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(count) = &self.count {
            count.0.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(newcomers) = &self.silent {
            newcomers.looked();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before
            && let Some(newcomers) = self.silent.take()
        {
            newcomers.spoke();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Takes the socket that is this process's standard input, and puts `/dev/null` in its place.
///
/// # Errors
/// [`ShimError::Invalid`] where it is no socket that listens.
pub fn inherited_socket(path: &Path) -> Result<OwnedFd, ShimError> {
    let stdin = io::stdin();
    if !rustix::net::sockopt::socket_acceptconn(&stdin).unwrap_or(false) {
        return Err(ShimError::Invalid(
            "standard input is no socket that listens: the action is start or delete".into(),
        ));
    }
    let taken = || {
        let listener = rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?;
        rustix::stdio::dup2_stdin(null()?.as_fd())?;
        Ok(listener)
    };
    taken().map_err(|err: io::Error| ShimError::io("take", path)(err))
}

/// Takes the standard output, by which `start` is told, and puts `/dev/null` in its place: that of the processes that this
/// one starts must not keep it open.
pub fn inherited_output() -> Result<OwnedFd, ShimError> {
    let taken = || {
        let output = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        rustix::stdio::dup2_stdout(null()?.as_fd())?;
        Ok(output)
    };
    taken().map_err(|err: io::Error| ShimError::io("take", "standard output")(err))
}

fn null() -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(work: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    /// As long as there is a use for it the process stays; then it stays for the limit more.
    #[test]
    fn idle_is_without_any_use() {
        let limit = Duration::from_millis(200);
        block_on(async {
            let begun = Instant::now();
            let in_use = || begun.elapsed() < Duration::from_millis(300);
            timeout(Duration::from_secs(10), idle(limit, in_use)).await.unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
            assert!(timeout(limit * 3, idle(limit, || true)).await.is_err(), "in use all the time");
        });
    }

    /// The end of every shim took ten milliseconds, for which containerd waited, whether anybody had connected or not.
    #[test]
    fn a_queue_is_waited_for_only_while_somebody_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let limit = Duration::from_millis(300);
        block_on(async {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            listener.set_nonblocking(true).unwrap();
            let queue = Queue(listener.try_clone().unwrap().into());
            let listener = UnixListener::from_std(listener).unwrap();
            let begun = Instant::now();
            assert!(queue.emptied(limit).await && begun.elapsed() < limit / 2, "{:?}", begun.elapsed());

            let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
            assert!(!queue.is_empty());
            assert!(!queue.emptied(limit).await, "nobody took it");
            assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());

            let taking = tokio::spawn(async move { listener.accept().await.map(drop) });
            assert!(queue.emptied(Duration::from_secs(10)).await && taking.is_finished());
            taking.await.unwrap().unwrap();
        });
    }

    /// Whoever says nothing on a connection has looked, and a container comes of it. `delete` looks for none.
    #[test]
    fn looks_are_told_from_requests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let newcomers = Newcomers::default();
        newcomers.came("c");
        block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let count = Arc::default();
            let mut incoming = Incoming { listener, count, newcomers: newcomers.clone(), pause: None };
            let mut take =
                async || std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_next(cx)).await.unwrap().unwrap();
            let mut client = UnixStream::connect(&path).await.unwrap();
            let mut taken = take().await;
            assert!(newcomers.expected());
            tokio::io::AsyncWriteExt::write_all(&mut client, b"a request").await.unwrap();
            tokio::io::AsyncReadExt::read(&mut taken, &mut [0; 4]).await.unwrap();
            assert!(!newcomers.expected());
            drop((taken, client));
            socket::remove_unserved(&path, Duration::ZERO).unwrap();
            drop(take().await);
            assert!(!newcomers.expected());

            assert!(matches!(socket::look(&path).unwrap(), socket::Found::Served));
            let mut looked = take().await;
            assert_eq!(tokio::io::AsyncReadExt::read(&mut looked, &mut [0; 4]).await.unwrap(), 0);
            drop(looked);
            assert!(newcomers.expected());
            newcomers.came("c");
            assert!(!newcomers.expected());
        });
    }

    /// One that has no container and has been asked to end.
    struct Ended;

    impl Task for Ended {}

    impl Host for Ended {
        async fn ended(&self) {}

        fn containers(&self) -> usize {
            0
        }

        fn running(&self) -> usize {
            0
        }

        fn close(&self) -> bool {
            true
        }
    }

    /// `start` had looked before the server was asked to end, and containerd's request for a container found it gone: some of a
    /// hundred containers failed whose group's others ended at the time.
    #[test]
    fn a_server_of_which_containerd_has_been_told_stays_for_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let newcomers = Newcomers::default();
        newcomers.came("c");
        block_on(async {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            listener.set_nonblocking(true).unwrap();
            let queue = Queue(listener.try_clone().unwrap().into());
            let listener = UnixListener::from_std(listener).unwrap();
            let mut incoming = Incoming { listener, count: Arc::default(), newcomers: newcomers.clone(), pause: None };
            assert!(matches!(socket::look(&path).unwrap(), socket::Found::Served));
            drop(std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_next(cx)).await.unwrap().unwrap());
            let served = Served::of(&path).unwrap();
            let mut ending = std::pin::pin!(withdraw(served, &newcomers, &queue, &Ended));
            assert!(timeout(Duration::from_millis(500), &mut ending).await.is_err() && path.exists());
            newcomers.came("c");
            timeout(Duration::from_secs(10), ending).await.unwrap();
            assert!(!path.exists());
        });
    }

    #[test]
    fn open_connections_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let count = Arc::new(Connections::default());
        block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let newcomers = Newcomers::default();
            let mut incoming = Incoming { listener, count: count.clone(), newcomers, pause: None };
            let _client = UnixStream::connect(&path).await.unwrap();
            let taken = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_next(cx)).await.unwrap().unwrap();
            assert_eq!(count.open(), 1);
            drop(taken);
            assert_eq!(count.open(), 0);

            // `delete` looks too: a server that ends stayed for half a minute because of that.
            socket::remove_unserved(&path, Duration::ZERO).unwrap();
            let looked = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_next(cx)).await.unwrap().unwrap();
            assert_eq!(count.open(), 0);
            drop(looked);
            assert_eq!(count.open(), 0);
            assert!(path.exists(), "it is served");
        });
    }
}
