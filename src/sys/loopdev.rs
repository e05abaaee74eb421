//! Loop devices: an image file as a block device, gone when its last user is (loop(4)).

use std::ffi::{CString, c_int};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Call, SysError, check};

const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// How many times another process may take the device that was free.
const TRIES: usize = 64;
/// The longest name that the kernel keeps of a file, in bytes, with its end.
const NAME: usize = 64;

/// `struct loop_info64` of `<linux/loop.h>`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A loop device on a file. It goes away when this is dropped and nothing is mounted from it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _device: OwnedFd,
}

impl LoopDevice {
    /// Puts a free loop device on the file at `image` (Linux 5.8).
    pub fn on(image: &Path, read_only: bool) -> Result<LoopDevice, SysError> {
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let file = open(image, access)?;
        let control = open(Path::new("/dev/loop-control"), OFlags::RDWR)?;
        for _ in 0..TRIES {
            let number = free_number(&control)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path, access)?;
            match configure(&device, &file, image, read_only) {
                Ok(()) => return Ok(LoopDevice { path, _device: device }),
                Err(err) if err.errno() == Some(libc::EBUSY) => {}
                Err(err) => return Err(err),
            }
        }
        Err(SysError::new("ioctl LOOP_CONFIGURE", image.display().to_string(), rustix::io::Errno::BUSY))
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open(path: &Path, access: OFlags) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).call("open", || path.display().to_string())
}

fn free_number(control: &OwnedFd) -> Result<c_int, SysError> {
    // SAFETY: the request takes no argument and returns a number.
    let number = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    check(number.into()).call("ioctl LOOP_CTL_GET_FREE", || "/dev/loop-control".into())?;
    Ok(number)
}

fn configure(device: &OwnedFd, file: &OwnedFd, image: &Path, read_only: bool) -> Result<(), SysError> {
    // SAFETY: the struct is integers and arrays of them, for which all zeros are valid.
    let mut config: Config = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().cast_unsigned();
    config.info.flags = LO_FLAGS_AUTOCLEAR | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    // Only for people to read: what does not fit is left out.
    let name = CString::new(image.as_os_str().as_bytes()).unwrap_or_default();
    for (to, from) in config.info.file_name.iter_mut().take(NAME - 1).zip(name.as_bytes()) {
        *to = *from;
    }
    // SAFETY: the request reads a `struct loop_config`, which the live local is by its layout, and takes a reference of
    // its own to the file behind the descriptor.
    let ret = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    check(ret.into()).map(drop).call("ioctl LOOP_CONFIGURE", || image.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_the_kernels() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
