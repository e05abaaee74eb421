//! The loopback interface: a network namespace begins with it down, and without it nothing reaches 127.0.0.1.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::proc::PidFd;
use super::process::in_child;
use super::{Call, SysError, check, ns};

/// Brings the loopback interface up in the network namespace of process `pid`, where it is not ours, in a child that joins
/// it (and the user namespace, whose rights this takes); one that is up stays as it is.
///
/// The error is the failed call's text. The caller must be single-threaded (see [`in_child`]), and sure of the pid.
pub fn bring_up_of(pid: i32) -> io::Result<()> {
    let flags = ns::differing(pid)? & (libc::CLONE_NEWNET | libc::CLONE_NEWUSER);
    if flags & libc::CLONE_NEWNET == 0 {
        return Ok(());
    }
    let pidfd = PidFd::of(pid)?;
    let (exit, text) = in_child(|channel| match ns::join(pidfd.as_fd(), flags).and_then(|()| bring_up()) {
        Ok(()) => 0,
        Err(err) => {
            // Without a reader nobody is left to tell; the exit code still says that it failed.
            let _ = std::fs::File::from(channel).write_all(err.to_string().as_bytes());
            1
        }
    })?;
    match exit.exit_code() {
        0 => Ok(()),
        code if text.is_empty() => Err(io::Error::other(format!("helper ended with {code}"))),
        _ => Err(io::Error::other(String::from_utf8_lossy(&text).into_owned())),
    }
}

/// `SIOCSIFFLAGS` of netdevice(7) on `lo`, in this process's network namespace.
fn bring_up() -> Result<(), SysError> {
    let on = || "lo".to_owned();
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .call("socket", || "AF_INET".into())?;
    // SAFETY: an `ifreq` is integers and bytes, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    interface(&socket, libc::SIOCGIFFLAGS, &mut request).call("ioctl SIOCGIFFLAGS", on)?;
    // SAFETY: the kernel has just written this member of the union, and every value of a short is valid.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if flags & libc::IFF_UP as libc::c_short != 0 {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    interface(&socket, libc::SIOCSIFFLAGS, &mut request).call("ioctl SIOCSIFFLAGS", on)
}

fn interface(socket: &OwnedFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both requests of this file take a pointer to an `ifreq`, which is borrowed for the call, and nothing more.
    let ret = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), what as _, std::ptr::from_mut(request)) };
    check(ret.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a network namespace of its own nothing can be reached before, and 127.0.0.1 after.
    #[test]
    fn it_is_down_and_then_up() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let reach = || std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.connect("127.0.0.1:9"));
        let (exit, text) = in_child(|channel| {
            let tried = ns::unshare(libc::CLONE_NEWNET).map_err(|err| err.to_string()).and_then(|()| {
                let before = reach().is_ok();
                bring_up().and_then(|()| bring_up()).map_err(|err| err.to_string())?;
                Ok(format!("{before} {}", reach().is_ok()))
            });
            let _ = std::fs::File::from(channel).write_all(format!("{tried:?}").as_bytes());
            0
        })
        .unwrap();
        assert_eq!((exit.exit_code(), String::from_utf8(text).unwrap().as_str()), (0, r#"Ok("false true")"#));
    }
}
