//! Method calls to systemd over its private socket: the part of the D-Bus protocol that they need.
//!
//! What is written here is what systemctl does as root. It needs no message bus. All sizes in an answer are checked: it
//! comes from the first process of the host, but a socket can be anybody's. See the D-Bus specification, "Message
//! Protocol" and "Authentication Protocol".

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use super::wire::{self, Answer, Property, Writer};
use crate::error::{Classify, Kind};
use crate::sys::proc::poll_readable;
use crate::sys::{SysError, socket};

/// systemd's own socket; only root may connect.
const SOCKET: &str = "/run/systemd/private";
/// How long systemd may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// A call to systemd that did not do.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// There is no connection.
    #[error("connect to systemd: {0}")]
    Connect(#[source] SysError),
    /// It broke.
    #[error("{doing} systemd: {source}")]
    Io {
        /// `write to`, `read from`.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What came back is no answer.
    #[error("systemd's answer is not understood: {0}")]
    Protocol(&'static str),
    /// systemd does not do it.
    #[error("systemd refused {method}: {message} ({name})")]
    Refused {
        /// The method of `org.freedesktop.systemd1.Manager`.
        method: &'static str,
        /// The error's name.
        name: String,
        /// For people.
        message: String,
    },
}

impl BusError {
    /// Refused with the error of this name.
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, BusError::Refused { name, .. } if name == wanted)
    }
}

impl Classify for BusError {
    fn kind(&self) -> Kind {
        match self {
            BusError::Connect(err) => err.kind(),
            BusError::Io { source, .. } => Kind::of_io(source),
            BusError::Protocol(_) | BusError::Refused { .. } => Kind::System,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Bus {
    socket: OwnedFd,
    serial: u32,
}

impl Bus {
    /// Connects as root.
    pub fn connect() -> Result<Bus, BusError> {
        Bus::over(socket::connect(Path::new(SOCKET)).map_err(BusError::Connect)?)
    }

    fn over(socket: OwnedFd) -> Result<Bus, BusError> {
        let bus = Bus { socket, serial: 0 };
        // User id 0, in hexadecimal digits of its decimal digits. `BEGIN` goes along, as systemd's own clients do it: were it
        // sent later, systemd could read the first call together with it, and would look at that call only when more
        // comes.
        bus.send(b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n")?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(bus.receive(1)?);
            if line.len() > 1024 {
                return Err(BusError::Protocol("authentication"));
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(BusError::Protocol("authentication is refused"));
        }
        Ok(bus)
    }

    /// `StartTransientUnit`: the job is accepted, not done.
    pub fn start_transient_unit(&mut self, unit: &str, properties: &[Property]) -> Result<(), BusError> {
        let mut body = Writer::default();
        body.text(unit);
        body.text("fail");
        body.properties(properties);
        body.array(8, |_| {});
        self.call("StartTransientUnit", "ssa(sv)a(sa(sv))", body)
    }

    /// `SetUnitProperties`, until the host is started anew.
    pub fn set_unit_properties(&mut self, unit: &str, properties: &[Property]) -> Result<(), BusError> {
        let mut body = Writer::default();
        body.text(unit);
        body.number(1);
        body.properties(properties);
        self.call("SetUnitProperties", "sba(sv)", body)
    }

    /// `StopUnit`: the job is accepted, not done.
    pub fn stop_unit(&mut self, unit: &str) -> Result<(), BusError> {
        let mut body = Writer::default();
        body.text(unit);
        body.text("replace");
        self.call("StopUnit", "ss", body)
    }

    /// `ResetFailedUnit`.
    pub fn reset_failed_unit(&mut self, unit: &str) -> Result<(), BusError> {
        let mut body = Writer::default();
        body.text(unit);
        self.call("ResetFailedUnit", "s", body)
    }

    /// `GetUnit`: succeeds if the unit is loaded.
    pub fn get_unit(&mut self, unit: &str) -> Result<(), BusError> {
        let mut body = Writer::default();
        body.text(unit);
        self.call("GetUnit", "s", body)
    }

    fn call(&mut self, method: &'static str, signature: &str, body: Writer) -> Result<(), BusError> {
        self.serial += 1;
        self.send(&wire::request(self.serial, method, signature, &body.0))?;
        loop {
            let answer = self.read_answer()?;
            match answer.kind {
                wire::METHOD_RETURN if answer.to == self.serial => return Ok(()),
                wire::ERROR if answer.to == self.serial => {
                    return Err(BusError::Refused { method, name: answer.error, message: answer.message });
                }
                // A signal, or an answer that nobody waits for.
                _ => {}
            }
        }
    }

    fn read_answer(&self) -> Result<Answer, BusError> {
        let fixed = self.receive(16)?;
        if fixed[0] != b'l' {
            return Err(BusError::Protocol("byte order"));
        }
        let number = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize;
        let (body_length, fields_length) = (number(4), number(12));
        if body_length > LONGEST || fields_length > LONGEST {
            return Err(BusError::Protocol("length"));
        }
        let fields = self.receive(fields_length.next_multiple_of(8))?;
        let body = self.receive(body_length)?;
        wire::answer(fixed[1], &fields[..fields_length], &body).ok_or(BusError::Protocol("header"))
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), BusError> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(n) => bytes = &bytes[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(BusError::Io { doing: "write to", source: errno.into() }),
            }
        }
        Ok(())
    }

    fn receive(&self, length: usize) -> Result<Vec<u8>, BusError> {
        let failed = |source| BusError::Io { doing: "read from", source };
        let mut bytes = vec![0; length];
        let mut at = 0;
        while at < length {
            if !poll_readable(self.socket.as_fd(), Some(PATIENCE)).map_err(failed)? {
                return Err(failed(std::io::Error::from_raw_os_error(libc::ETIMEDOUT)));
            }
            match rustix::io::read(&self.socket, &mut bytes[at..]) {
                Ok(0) => return Err(failed(std::io::Error::from_raw_os_error(libc::ECONNRESET))),
                Ok(n) => at += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd that read the first call together with `BEGIN` did not look at it.
    #[test]
    fn the_authentication_is_one_write_and_an_answer_is_found_among_signals() {
        use std::io::{Read, Write};

        let (ours, theirs) = socket::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = std::os::unix::net::UnixStream::from(theirs);
            let mut buffer = [0; 1024];
            let n = stream.read(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n");
            stream.write_all(b"OK 0123\r\n").unwrap();
            let n = stream.read(&mut buffer).unwrap();
            assert_eq!(buffer[..n], wire::request(1, "ResetFailedUnit", "s", b"\x01\0\0\0u\0"));
            let message = |kind: u8, body: &[u8], fields: &dyn Fn(&mut Writer)| {
                let mut w = Writer(vec![b'l', kind, 0, 1]);
                w.number(body.len() as u32);
                w.number(77);
                w.array(8, fields);
                w.align(8);
                w.0.extend(body);
                w.0
            };
            let signal = message(4, b"", &|w| {
                w.0.push(3);
                w.signature("s");
                w.text("JobRemoved");
            });
            let mut text = Writer::default();
            text.text("not loaded");
            let error = message(wire::ERROR, &text.0, &|w| {
                w.0.push(4);
                w.signature("s");
                w.text("org.x.NoSuchUnit");
                w.align(8);
                w.0.push(5);
                w.signature("u");
                w.number(1);
                w.align(8);
                w.0.push(8);
                w.signature("g");
                w.signature("s");
            });
            stream.write_all(&[signal, error].concat()).unwrap();
        });
        let refused = Bus::over(ours).unwrap().reset_failed_unit("u").unwrap_err();
        assert!(refused.is("org.x.NoSuchUnit"), "{refused:?}");
        assert_eq!(refused.to_string(), "systemd refused ResetFailedUnit: not loaded (org.x.NoSuchUnit)");
        server.join().unwrap();
    }
}
