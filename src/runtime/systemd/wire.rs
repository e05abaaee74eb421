//! The D-Bus wire format, as far as calls to systemd need it: what is written, and answers that are read with care.
//!
//! Everything is little-endian, and aligned to its own size from the beginning of the message. See the D-Bus
//! specification, "Type System" and "Message Protocol".

/// A message that asks.
pub const METHOD_CALL: u8 = 1;
/// One that answers.
pub const METHOD_RETURN: u8 = 2;
/// One that answers with an error.
pub const ERROR: u8 = 3;

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
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Pads to a multiple of `to`.
    pub fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    /// Type `u`; a `b` is one too.
    pub fn number(&mut self, n: u32) {
        self.align(4);
        self.0.extend(n.to_le_bytes());
    }

    /// Type `s` or `o`.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u32);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// Type `g`.
    pub fn signature(&mut self, text: &str) {
        self.0.push(text.len() as u8);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// An array whose items begin at multiples of `align`; its length does not count the padding before the first.
    pub fn array(&mut self, align: usize, items: impl FnOnce(&mut Writer)) {
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

    /// Type `a(sv)`.
    pub fn properties(&mut self, list: &[Property]) {
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
pub struct Answer {
    /// One of the three above, or a signal's.
    pub kind: u8,
    /// The message that it answers; 0 for a signal.
    pub to: u32,
    /// An error's name.
    pub error: String,
    /// An error's text.
    pub message: String,
}

/// Reads a message's header fields and, of an error, its text.
pub fn answer(kind: u8, fields: &[u8], body: &[u8]) -> Option<Answer> {
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

/// The bytes of a method call.
pub fn request(serial: u32, method: &str, signature: &str, body: &[u8]) -> Vec<u8> {
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
