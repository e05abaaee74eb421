//! `kubectl exec -it` and `kubectl attach`: what is typed and printed goes by a WebSocket (RFC 6455) of the engine's, in
//! channels, whose number is each message's first byte (`v4.channel.k8s.io`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::node::{Node, Pod};
use super::{of_each_release, result};
use crate::shim::daemon::{Release, SOON};

/// The channels: input, output, what is told at the end, the size of the terminal.
const STDIN: u8 = 0;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;

struct Stream {
    tcp: TcpStream,
}

impl Stream {
    /// Calls `Exec` or `Attach`, and goes to the address that is answered.
    #[track_caller]
    fn open(node: &Node, method: &str, request: &Value) -> Stream {
        let url = node.call(method, request)["url"].as_str().expect("an address").to_owned();
        let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url}"));
        let (host, path) = rest.split_once('/').expect("a path");
        let mut tcp = node.connect(host);
        tcp.set_read_timeout(Some(SOON)).expect("set a limit");
        write!(
            tcp,
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        )
        .expect("send");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tcp.read_exact(&mut byte).expect("read");
            head.extend(byte);
        }
        let head = String::from_utf8_lossy(&head);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Stream { tcp }
    }

    fn send(&mut self, channel: u8, text: &str) {
        // A client's messages are masked; with zeros they stay as they are.
        let length = u8::try_from(text.len() + 1).ok().filter(|n| *n < 126).expect("short");
        let mut frame = vec![BINARY, 0x80 | length, 0, 0, 0, 0, channel];
        frame.extend(text.as_bytes());
        self.tcp.write_all(&frame).expect("send");
    }

    /// One message: channel and text; none at the end.
    fn next(&mut self) -> Option<(u8, String)> {
        let mut head = [0; 2];
        self.tcp.read_exact(&mut head).ok()?;
        let length = match head[1] {
            126 => {
                let mut long = [0; 2];
                self.tcp.read_exact(&mut long).ok()?;
                usize::from(u16::from_be_bytes(long))
            }
            short => usize::from(short),
        };
        let mut bytes = vec![0; length];
        self.tcp.read_exact(&mut bytes).ok()?;
        if head[0] == CLOSE {
            return None;
        }
        let (channel, text) = bytes.split_first()?;
        Some((*channel, String::from_utf8_lossy(text).into_owned()))
    }

    /// What is printed until `end` is.
    #[track_caller]
    fn until(&mut self, end: &str) -> String {
        let mut printed = String::new();
        while !printed.contains(end) {
            let (channel, text) = self.next().unwrap_or_else(|| panic!("the end, after {printed:?}"));
            assert_ne!(channel, ERROR, "{text} after {printed:?}");
            printed += &text;
        }
        printed
    }

    /// What is told at the end.
    #[track_caller]
    fn end(&mut self) -> Value {
        let (mut printed, mut told) = (String::new(), None);
        // Each channel is first opened by an empty message.
        while let Some((channel, text)) = self.next() {
            match channel {
                ERROR if !text.is_empty() => told = Some(text),
                _ => printed += &text,
            }
        }
        let told = told.unwrap_or_else(|| panic!("nothing is told, after {printed:?}"));
        serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}"))
    }
}

of_each_release!(exec_and_attach);

fn exec_and_attach(release: Release) {
    let pod = Node::shared(release).pod(&json!({}));
    on_terminals_and_pipes(&pod, &json!({}));
    pod.remove();
}

/// A terminal of the size that is asked for, input, output, exit codes; and a result for the exec. `more` is what containers of
/// the pod have in their configuration.
pub(super) fn on_terminals_and_pipes(pod: &Pod<'_>, more: &Value) {
    let node = pod.node;
    let container = pod.run(&["sleep", "100000"], more);
    let exec = |cmd: &[&str], tty: bool| {
        let id = &container.id;
        Stream::open(
            node,
            "Exec",
            &json!({ "container_id": id, "cmd": cmd, "tty": tty, "stdin": true, "stdout": true, "stderr": !tty }),
        )
    };
    let mut typed = exec(&["sh"], true);
    typed.send(RESIZE, &json!({ "Width": 111, "Height": 44 }).to_string());
    std::thread::sleep(Duration::from_millis(500));
    typed.send(STDIN, "stty size; tty; echo x >/root/x\n");
    let printed = typed.until("/dev/pts/");
    assert!(printed.contains("44 111"), "{printed}");
    typed.send(STDIN, "exit 3\n");
    let end = typed.end();
    assert_eq!((&end["reason"], &end["details"]["causes"][0]["message"]), (&json!("NonZeroExitCode"), &json!("3")));
    let results = result::in_bundle(&node.containerd.bundle(&container.id));
    assert_eq!(result::end(&results[0]), ("exited", Some(3)));

    let mut piped = exec(&["sh", "-c", "read line; echo got $line; echo more >&2"], false);
    piped.send(STDIN, "hello\n");
    assert!(piped.until("got hello").contains("got hello"));
    assert_eq!(piped.end()["status"], "Success");

    let mut config = more.clone();
    config["tty"] = json!(true);
    config["stdin"] = json!(true);
    let shell = pod.run(&["sh"], &config);
    let mut attached = Stream::open(
        node,
        "Attach",
        &json!({ "container_id": shell.id, "tty": true, "stdin": true, "stdout": true, "stderr": false }),
    );
    attached.send(STDIN, "echo $((40 + 2)); exit 8\n");
    assert!(attached.until("42").contains("42"));
    assert_eq!(shell.ended()["exit_code"], 8);
    assert!(shell.log().contains("42"), "{}", shell.log());
}
