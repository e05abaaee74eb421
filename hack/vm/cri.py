"""A client of the API by which Kubernetes drives containerd (CRI): as much of gRPC as a few small calls need."""

import socket

from machine import PATIENCE

SOCKET = "/run/containerd/containerd.sock"
HEADERS, SETTINGS, PING, GOAWAY, RST = 1, 4, 6, 7, 3


def field(number, value):
    """A field of a message: bytes, which may be a message, a text, or a number below 128."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    assert len(value) < 1 << 14, "a length of two bytes at most"
    length = [len(value)] if len(value) < 128 else [len(value) & 127 | 128, len(value) >> 7]
    return bytes([number << 3 | 2, *length]) + value


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name, value):
    """Without an index and without compression."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def cri(method, message=b""):
    """`runtime.v1.RuntimeService/METHOD`: the answer's bytes. An answer without a message is an error, whose text is not
    decoded: containerd's log has it."""
    head = [(":method", "POST"), (":scheme", "http"), (":path", f"/runtime.v1.RuntimeService/{method}"),
            (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(SOCKET)
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
            + frame(HEADERS, 4, 1, b"".join(header(name, value) for name, value in head))
            + frame(0, 1, 1, b"\0" + len(message).to_bytes(4, "big") + message)
        )
        stream, data = connection.makefile("rb"), b""
        while True:
            begin = stream.read(9)
            assert len(begin) == 9, f"{method}: containerd has closed the connection"
            kind, flags, payload = begin[3], begin[4], stream.read(int.from_bytes(begin[:3], "big"))
            if kind in (SETTINGS, PING) and not flags & 1:
                connection.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
            elif int.from_bytes(begin[5:], "big") == 1:
                data += payload if kind == 0 else b""
                if kind == RST or kind in (0, HEADERS) and flags & 1:
                    break
            assert kind != GOAWAY, f"{method}: {payload}"
    assert len(data) >= 5, f"{method}: an error; see containerd's log"
    return data[5:]
