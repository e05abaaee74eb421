//! Method calls to systemd over its private socket: the part of the D-Bus protocol that they need.
//!
//! What is written here is what systemctl does as root. It needs no message bus. All sizes in an answer are checked: it
//! comes from the first process of the host, but a socket can be anybody's. See the D-Bus specification, "Message
//! Protocol" and "Authentication Protocol".

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::error::{Classify, Kind};
use crate::sys::proc::poll_readable;
use crate::sys::{SysError, socket};

/// systemd's own socket; only root may connect.
const SOCKET: &str = "/run/systemd/private";
/// How long systemd may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes.
const LONGEST: usize = 1 << 20;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

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

/// A value of a unit's property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Type `b`.
    Bool(bool),
    /// Type `t`.
    U64(u64),
    /// Type `s`.
    Text(String),
    /// Type `au`.
    Pids(Vec<u32>),
    /// Type `ay`.
    Bytes(Vec<u8>),
}

/// A property's name and value.
pub type Property = (&'static str, Value);

/// A message, or a part of one that begins at a multiple of 8.
#[derive(Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, n: u32) {
        self.align(4);
        self.0.extend(n.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(text.len() as u8);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// An array whose items begin at multiples of `align`; its length does not count the padding before the first.
    fn array(&mut self, align: usize, items: impl FnOnce(&mut Writer)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let begin = self.0.len();
        items(self);
        let length = (self.0.len() - begin) as u32;
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn variant(&mut self, value: &Value) {
        match value {
            Value::Bool(yes) => {
                self.signature("b");
                self.number((*yes).into());
            }
            Value::U64(n) => {
                self.signature("t");
                self.align(8);
                self.0.extend(n.to_le_bytes());
            }
            Value::Text(text) => {
                self.signature("s");
                self.text(text);
            }
            Value::Pids(pids) => {
                self.signature("au");
                self.array(4, |w| pids.iter().for_each(|pid| w.number(*pid)));
            }
            Value::Bytes(bytes) => {
                self.signature("ay");
                self.array(1, |w| w.0.extend(bytes));
            }
        }
    }

    fn properties(&mut self, list: &[Property]) {
        self.array(8, |w| {
            for (name, value) in list {
                w.align(8);
                w.text(name);
                w.variant(value);
            }
        });
    }
}

/// Reads what [`Writer`] writes, and no further than there is.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    fn align(&mut self, to: usize) -> Option<()> {
        let to = self.at.next_multiple_of(to);
        self.take(to - self.at).map(drop)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4)?;
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.number()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Some(text)
    }

    fn signature(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?.into();
        let text = self.take(length)?;
        self.take(1)?;
        Some(text)
    }
}

/// What is wanted of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    kind: u8,
    /// The message that it answers; 0 for a signal.
    to: u32,
    error: String,
    message: String,
}

/// Reads a message's header fields and, of an error, its text.
fn answer(kind: u8, fields: &[u8], body: &[u8]) -> Option<Answer> {
    let mut answer = Answer { kind, to: 0, error: String::new(), message: String::new() };
    let mut signature: &[u8] = &[];
    let mut reader = Reader { bytes: fields, at: 0 };
    while reader.at < fields.len() {
        reader.align(8)?;
        if reader.at >= fields.len() {
            break;
        }
        let code = reader.byte()?;
        match (code, reader.signature()?) {
            (4, b"s") => answer.error = reader.text()?,
            (5, b"u") => answer.to = reader.number()?,
            (8, b"g") => signature = reader.signature()?,
            (_, b"s" | b"o") => drop(reader.text()?),
            (_, b"u") => drop(reader.number()?),
            (_, b"g") => drop(reader.signature()?),
            _ => return None,
        }
    }
    if kind == ERROR && signature.starts_with(b"s") {
        answer.message = Reader { bytes: body, at: 0 }.text()?;
    }
    Some(answer)
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
        self.send(&request(self.serial, method, signature, &body.0))?;
        loop {
            let answer = self.read_answer()?;
            match answer.kind {
                METHOD_RETURN if answer.to == self.serial => return Ok(()),
                ERROR if answer.to == self.serial => {
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
        answer(fixed[1], &fields[..fields_length], &body).ok_or(BusError::Protocol("header"))
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

/// The bytes of a method call.
fn request(serial: u32, method: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut message = Writer::default();
    // Little-endian, no flags, version 1.
    message.0.extend([b'l', METHOD_CALL, 0, 1]);
    message.number(body.len() as u32);
    message.number(serial);
    message.array(8, |w| {
        for (code, kind, value) in [
            (1, "o", "/org/freedesktop/systemd1"),
            (2, "s", "org.freedesktop.systemd1.Manager"),
            (3, "s", method),
            (6, "s", "org.freedesktop.systemd1"),
        ] {
            w.align(8);
            w.0.push(code);
            w.signature(kind);
            w.text(value);
        }
        w.align(8);
        w.0.push(8);
        w.signature("g");
        w.signature(signature);
    });
    message.align(8);
    message.0.extend(body);
    message.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_as_the_specification_says() {
        let mut w = Writer::default();
        w.properties(&[("A", Value::U64(7)), ("Pi", Value::Pids(vec![1, 2])), ("B", Value::Bool(true))]);
        let mut want = vec![0u8; 0];
        // Length, padding to 8.
        want.extend([68, 0, 0, 0, 0, 0, 0, 0]);
        // "A", t, padding, 7.
        want.extend([1, 0, 0, 0, b'A', 0, 1, b't', 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        // "Pi", au, length, 1, 2, padding.
        want.extend([2, 0, 0, 0, b'P', b'i', 0, 2, b'a', b'u', 0, 0]);
        want.extend([8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        // "B", b, padding, 1.
        want.extend([1, 0, 0, 0, b'B', 0, 1, b'b', 0, 0, 0, 0, 1, 0, 0, 0]);
        want[0] = (want.len() - 8) as u8;
        assert_eq!(w.0, want);
    }

    #[test]
    fn a_request_reads_back() {
        let mut body = Writer::default();
        body.text("c.scope");
        let bytes = request(9, "GetUnit", "s", &body.0);
        let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        assert_eq!(&bytes[..12], [b'l', 1, 0, 1, 12, 0, 0, 0, 9, 0, 0, 0]);
        let fields_end = 16 + length.next_multiple_of(8);
        assert_eq!(bytes[fields_end..], body.0);
        let read = answer(METHOD_CALL, &bytes[16..16 + length], &bytes[fields_end..]).unwrap();
        assert_eq!(read, Answer { kind: 1, to: 0, error: String::new(), message: String::new() });
    }

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
            assert_eq!(buffer[..n], request(1, "ResetFailedUnit", "s", b"\x01\0\0\0u\0"));
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
            let error = message(ERROR, &text.0, &|w| {
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

    #[test]
    fn an_error_is_read_and_a_cut_one_is_not() {
        let mut fields = Writer::default();
        for (code, text) in [(4u8, "org.x.Err"), (7, ":1.1")] {
            fields.align(8);
            fields.0.push(code);
            fields.signature("s");
            fields.text(text);
        }
        fields.align(8);
        fields.0.push(5);
        fields.signature("u");
        fields.number(3);
        fields.align(8);
        fields.0.push(8);
        fields.signature("g");
        fields.signature("s");
        let mut body = Writer::default();
        body.text("no such unit");
        let read = answer(ERROR, &fields.0, &body.0).unwrap();
        assert_eq!((read.to, read.error.as_str(), read.message.as_str()), (3, "org.x.Err", "no such unit"));
        assert_eq!(answer(ERROR, &fields.0, &body.0[..7]), None);
        // Any cut of the fields is either seen or leaves a whole number of them.
        for n in 0..fields.0.len() {
            let _ = answer(ERROR, &fields.0[..n], &body.0);
        }
        assert_eq!(answer(ERROR, &fields.0[..20], &body.0), None);
        assert_eq!(answer(ERROR, &[4, 255, b's'], &body.0), None);
    }
}
