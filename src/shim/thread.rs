//! Work that waits for the kernel, on a thread of its own: the shim's one thread serves all its containers.
//!
//! The kernel may have no thread to give: the shim's cgroup, or the host, is full of processes. Tokio's pool panics then, in
//! the middle of a request, and does the work later, when nobody expects it any more. Here it is an error, and the work is not
//! done.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use tokio::sync::oneshot;

use super::ShimError;

/// The stack of a thread, in bytes.
pub const STACK: usize = 256 << 10;

/// Does the work to its end, also where nobody waits for that any more.
///
/// # Errors
/// The work's; [`ShimError::Io`] if there is no thread; [`ShimError::State`] if the work panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ShimError> + Send + 'static,
) -> Result<T, ShimError> {
    let (done, result) = oneshot::channel();
    // Who asked may have given up.
    start(move || drop(done.send(work()))).map_err(ShimError::io("start", "a thread"))?;
    result.await.unwrap_or_else(|_| Err(ShimError::broken()))
}

/// Does the work to its end, on this thread where there is no other: for what must not be lost.
///
/// # Errors
/// The work's; [`io::ErrorKind::Other`] if it panics.
pub async fn blocking_or_here<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    let work = Arc::new(Mutex::new(Some(move || drop(done.send(work())))));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let on_thread = work.clone();
    if start(move || take(&on_thread).into_iter().for_each(|work| work())).is_err() {
        take(&work).into_iter().for_each(|work| work());
    }
    result.await.unwrap_or_else(|_| Err(io::Error::other(ShimError::broken())))
}

/// Begins work of which nobody needs the outcome; where there is no thread for it, it is not done.
pub fn aside(work: impl FnOnce() + Send + 'static) {
    // It is done to save time, so no time is spent on it here.
    let _ = start(work);
}

fn start(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().stack_size(STACK).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_done_fails_or_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(blocking(|| Ok(3))).unwrap(), 3);
        let failed = runtime.block_on(blocking(|| Err::<(), _>(ShimError::NotFound("x".into()))));
        assert!(matches!(failed, Err(ShimError::NotFound(_))));
        let panicked = runtime.block_on(blocking::<()>(|| panic!("on purpose")));
        assert!(matches!(panicked, Err(ShimError::State(_))));
        assert_eq!(runtime.block_on(blocking_or_here(|| Ok(3))).unwrap(), 3);
        let failed = runtime.block_on(blocking_or_here(|| Err::<(), _>(io::ErrorKind::StorageFull.into())));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
