"""A registry on loopback, which can only be read, with the images that containerd's tests want.

    python3 registry.py PORT ROOTFS.tar

All of them are made of one root filesystem's tar, and those with a volume or with users have a second layer.
"""

import gzip
import hashlib
import http.server
import io
import json
import sys
import tarfile

BLOBS = {}  # digest -> bytes
TAGS = {}  # name:tag -> digest of its index
TYPE = "application/vnd.oci.image."
CREATED = "2020-01-01T00:00:00Z"
SHELL = {"Cmd": ["sh"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
# The users that the tests look up, at the numbers that they compare with.
PASSWD = """root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
sys:x:3:3:sys:/dev:/bin/false
mail:x:8:8:mail:/var/spool/mail:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
operator:x:37:37:Operator:/var:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
"""
GROUP = """root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
lp:x:7:
mail:x:8:
www-data:x:33:
operator:x:37:
wheel:x:10:root
users:x:100:
nogroup:x:65534:
"""


def blob(kind, data):
    """Keeps the bytes; gives their descriptor."""
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    BLOBS[digest] = data
    return {"mediaType": TYPE + kind, "digest": digest, "size": len(data)}


def tar(files):
    """A tar of (path, text or None for a directory, owner), and where it is not the usual one, the mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, text, owner, *mode in files:
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.uid, entry.gid = 1, owner, owner
            if text is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(text), *(mode or [0o644])
                archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def image(name, layers, config):
    """An image of plain tars, for this kind of machine."""
    platform = {"architecture": "amd64", "os": "linux"}
    document = {
        **platform,
        "created": CREATED,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]},
        "history": [{"created": CREATED, "created_by": "hack/containerd-suite"} for _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": TYPE + "manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(document).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, mtime=0)) for layer in layers],
    }
    index = {
        "schemaVersion": 2,
        "mediaType": TYPE + "index.v1+json",
        "manifests": [{**blob("manifest.v1+json", json.dumps(manifest).encode()), "platform": platform}],
    }
    TAGS[name] = blob("index.v1+json", json.dumps(index).encode())["digest"]


def media_type(data):
    try:
        return json.loads(data)["mediaType"]
    except (ValueError, KeyError, TypeError):
        return "application/octet-stream"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def find(self):
        """/v2/, or /v2/NAME/manifests|blobs/TAG-OR-DIGEST, where NAME may have slashes."""
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts == ["v2"]:
            return b"{}"
        if len(parts) < 4 or parts[-2] not in ("manifests", "blobs"):
            return None
        name, reference = "/".join(parts[1:-2]), parts[-1]
        return BLOBS.get(reference if reference.startswith("sha256:") else TAGS.get(f"{name}:{reference}"))

    def do_HEAD(self):
        data = self.find()
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        if data is not None:
            self.send_header("Content-Type", media_type(data))
            self.send_header("Docker-Content-Digest", "sha256:" + hashlib.sha256(data).hexdigest())
        self.end_headers()
        return data

    def do_GET(self):
        self.wfile.write(self.do_HEAD() or b"")

    def log_message(self, *_):
        pass


with open(sys.argv[2], "rb") as file:
    rootfs = file.read()
# What the tests call and busybox has not: a shell by another name, a file that is setuid.
more = tar(
    [
        ("etc", None, 0),
        ("etc/passwd", PASSWD, 0),
        ("etc/group", GROUP, 0),
        ("bin/bash", '#!/bin/sh\nexec sh "$@"\n', 0, 0o755),
        ("usr/bin/passwd", "", 0, 0o4755),
    ]
)
# It ends when it is told to, which a first process does only if it says so.
pause = tar([("pause", "#!/bin/sh\ntrap 'exit 0' INT TERM\nsleep 1000000 &\nwait\n", 0, 0o755)])
volumes = {"/test_dir": "test_file", "/:colon_prefixed": "colon_prefixed_file", "/C:/weird_test_dir": "weird_test_file"}
files = tar([(f"{volume[1:]}/{name}", "test_content\n", 0) for volume, name in volumes.items()])
owned = tar([("test_dir", None, 65534)])

image("busybox:1.36", [rootfs, more], SHELL)
image("alpine:3.14.0", [rootfs], SHELL)
image("pause:3.10", [rootfs, pause], {**SHELL, "Cmd": None, "Entrypoint": ["/pause"]})
# Like the server it opens its error output by name, which only who owns the pipe may; it says that it runs, and goes on.
server = "echo start worker processes >/dev/stderr && exec sleep 1000000"
image("nginx:1.27.0", [rootfs], {**SHELL, "Cmd": ["sh", "-c", server]})
image("resource-consumer:1.10", [rootfs], SHELL)
image("volume-copy-up:2.2", [rootfs, files], {**SHELL, "Volumes": {volume: {} for volume in volumes}})
image("volume-ownership:2.1", [rootfs, more, owned], {**SHELL, "User": "65534", "Volumes": {"/test_dir": {}}})
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
