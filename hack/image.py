#!/usr/bin/env python3
"""Makes an image archive of one layer, which docker, ctr and podman all load, from a root filesystem's tar.

    image.py ROOTFS.tar NAME:TAG OUT.tar [--cmd WORD...]

And a wheel with one module, which pip installs without any network:

    image.py --wheel DIRECTORY
"""

import base64
import hashlib
import io
import json
import os
import platform
import sys
import tarfile
import zipfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _slow(f)


def _slow(f):
    digest = hashlib.sha256()
    while block := f.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def archive(rootfs, name, out, cmd):
    layer = sha256(rootfs)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Cmd": cmd,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + layer]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "hack/images.sh"}],
        }
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = json.dumps([{"Config": digest + ".json", "RepoTags": [name], "Layers": [layer + ".tar"]}]).encode()
    with tarfile.open(out, "w") as tar:
        for path, data in ((digest + ".json", config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(rootfs, layer + ".tar")


def wheel(directory):
    files = {
        "agentsbx_probe.py": b'"""A module for tests."""\n\nANSWER = 42\n',
        "agentsbx_probe-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: agentsbx-probe\nVersion: 1.0\n",
        "agentsbx_probe-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: hack\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "agentsbx_probe-1.0.dist-info/RECORD"
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    files[record] = ("\n".join(rows + [record + ",,"]) + "\n").encode()
    out = os.path.join(directory, "agentsbx_probe-1.0-py3-none-any.whl")
    with zipfile.ZipFile(out, "w") as z:
        for path, data in files.items():
            z.writestr(zipfile.ZipInfo(path), data)


def main(args):
    if len(args) == 2 and args[0] == "--wheel":
        wheel(args[1])
    elif len(args) >= 3:
        cmd = args[4:] if len(args) > 3 and args[3] == "--cmd" else ["sh"]
        archive(args[0], args[1], args[2], cmd)
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
