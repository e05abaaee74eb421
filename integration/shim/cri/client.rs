//! A client of the API by which Kubernetes drives a runtime's engine (CRI): gRPC over a socket, with messages as JSON. Their
//! fields are those of the API's own file, which hack/containerds.sh gets.

use std::fmt::{self, Display};
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use containerd_shim_protos::protobuf::reflect::FileDescriptor;
use protobuf_json_mapping::{PrintOptions, parse_dyn_from_str, print_to_string_with_options};
use serde_json::Value;

use crate::shim::daemon::Release;

/// A client of one socket. Calls block; those of several threads go side by side, each on a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

/// What was answered instead of a message: gRPC's status.
#[derive(Debug)]
pub struct Refusal {
    /// The code, 4 for a deadline that is over.
    pub code: i32,
    /// The text.
    pub message: String,
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

fn schema() -> &'static FileDescriptor {
    static SCHEMA: OnceLock<FileDescriptor> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let dir = Release::cri();
        let mut parser = protobuf_parse::Parser::new();
        let parsed = parser.pure().include(&dir).input(dir.join("api.proto")).file_descriptor_set();
        let file = parsed.expect("parse api.proto").file.remove(0);
        FileDescriptor::new_dynamic(file, &[]).expect("resolve api.proto")
    })
}

impl Client {
    /// For a socket.
    pub fn new(socket: PathBuf) -> Client {
        Client { socket }
    }

    /// `runtime.v1.SERVICE/METHOD`; panics if there is no answer half a minute after the deadline that the engine is told.
    pub fn call(&self, service: &str, method: &str, request: &Value, deadline: Duration) -> Result<Value, Refusal> {
        let message = |kind: &str| {
            let name = format!("{method}{kind}");
            schema().message_by_package_relative_name(&name).unwrap_or_else(|| panic!("no message {name}"))
        };
        let request = parse_dyn_from_str(&message("Request"), &request.to_string())
            .unwrap_or_else(|e| panic!("{method}: {e} in {request}"));
        let bytes = request.write_to_bytes_dyn().expect("encode");
        let path = format!("/runtime.v1.{service}/{method}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = runtime.block_on(async {
            tokio::time::timeout(deadline + Duration::from_secs(30), self.exchange(&path, &bytes, deadline)).await
        });
        let bytes = answer.unwrap_or_else(|_| panic!("{method}: no answer"))?;
        let mut answer = message("Response").new_instance();
        answer.merge_from_bytes_dyn(&bytes).unwrap_or_else(|e| panic!("{method}: {e}"));
        let options =
            PrintOptions { proto_field_name: true, always_output_default_values: true, ..PrintOptions::default() };
        let text = print_to_string_with_options(&*answer, &options).expect("print");
        Ok(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    async fn exchange(&self, path: &str, message: &[u8], deadline: Duration) -> Result<Vec<u8>, Refusal> {
        // The transport's errors say nothing of the runtime: the engine is gone.
        let gone = |err: &dyn Display| Refusal { code: 14, message: format!("{}: {err}", self.socket.display()) };
        let stream = tokio::net::UnixStream::connect(&self.socket).await.map_err(|e| gone(&e))?;
        let shaken = h2::client::Builder::new().handshake::<_, Cursor<Vec<u8>>>(stream).await;
        let (client, connection) = shaken.map_err(|e| gone(&e))?;
        let driver = tokio::spawn(connection);
        let request = http::Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", format!("{}m", deadline.as_millis()))
            .body(())
            .expect("a request");
        let mut client = client.ready().await.map_err(|e| gone(&e))?;
        let (response, mut body) = client.send_request(request, false).map_err(|e| gone(&e))?;
        // A flag and the length come first.
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).expect("small").to_be_bytes());
        framed.extend(message);
        body.send_data(Cursor::new(framed), true).map_err(|e| gone(&e))?;
        let (head, mut body) = response.await.map_err(|e| gone(&e))?.into_parts();
        let mut data = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(|e| gone(&e))?;
            body.flow_control().release_capacity(chunk.len()).map_err(|e| gone(&e))?;
            data.extend(&chunk);
        }
        let trailers = body.trailers().await.map_err(|e| gone(&e))?.unwrap_or(head.headers);
        driver.abort();
        let field = |name: &str| trailers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        match field("grpc-status").as_deref() {
            Some("0") => Ok(data.split_off(5)),
            Some(code) => Err(Refusal {
                code: code.parse().expect("a number"),
                message: unescape(&field("grpc-message").unwrap_or_default()),
            }),
            None => Err(gone(&"an answer without a status")),
        }
    }
}

/// `%22` and the like.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let code = more.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A field of bytes, which JSON has in base64, as text.
#[track_caller]
pub fn text(field: &Value) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in field.as_str().expect("a text").bytes().filter(|letter| *letter != b'=') {
        let value = ALPHABET.iter().position(|known| *known == letter).expect("base64");
        bits = bits << 6 | u32::try_from(value).expect("below 64");
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).expect("a byte"));
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
