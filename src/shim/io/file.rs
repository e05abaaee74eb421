//! A log file. The process writes to a pipe, not to the file: a descriptor of the file would let it cut or overwrite what
//! it has logged, and a process without root could not open its `/dev/stdout`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fifo;
use crate::shim::ShimError;
use crate::shim::thread::{blocking, blocking_or_here};

/// Opens the file at `path` for appending, and makes it and its directories where they are missing (0644, 0755).
pub(super) async fn create(path: PathBuf) -> Result<Arc<File>, ShimError> {
    blocking(move || {
        let parent = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(ShimError::io("mkdir", parent))?;
        open(&path, OpenOptions::new().create(true).mode(0o644))
    })
    .await
}

/// Opens what is there at `path`, where a client gave the path of a file instead of a fifo's.
///
/// # Errors
/// If it is a device or a socket.
pub(super) async fn existing(path: PathBuf) -> Result<Arc<File>, ShimError> {
    blocking(move || open(&path, &mut OpenOptions::new())).await
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<Arc<File>, ShimError> {
    // A fifo must not be waited for, nor a terminal taken.
    let options = options.append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let kind = std::fs::metadata(path).map(|m| m.file_type());
    if kind.is_ok_and(|k| k.is_fifo() || k.is_char_device() || k.is_block_device() || k.is_socket()) {
        return Err(fifo::not_a_fifo(path));
    }
    options.open(path).map(Arc::new).map_err(ShimError::io("open", path))
}

/// Appends `bytes`, away from the shim's thread where that can be: a disk can take long.
pub(super) async fn append(file: &Arc<File>, bytes: Vec<u8>) -> io::Result<()> {
    let file = file.clone();
    blocking_or_here(move || (&*file).write_all(&bytes)).await
}
