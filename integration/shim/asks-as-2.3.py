#!/usr/bin/python3
"""Stands between containerd 2.x and the shim, and has it started in the form of containerd 2.3 and later.

containerd's options, an Any, become an extension of BootstrapParams; the BootstrapResult becomes JSON, which has the same
fields, and which 2.0 and later read too. All else goes through: flags, environment, `delete`, `-info`.
"""

import json
import os
import subprocess
import sys

SHIM = "@SHIM@"


def varint(number):
    """A number as a message has it; negative ones are 64 bits wide."""
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """One field: a number, or bytes or text with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value if isinstance(value, bytes) else value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The fields of a message that has numbers and text only."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = message[at : at + value].decode(), at + value
        elif key & 7 != 0:
            raise ValueError(f"a field of kind {key & 7}")
        found[key >> 3] = value
    return found


def start(flags):
    options = sys.stdin.buffer.read()
    of = {name: flags[flags.index(name) + 1] for name in ("-id", "-namespace", "-address", "-publish-binary")}
    params = field(1, of["-id"]) + field(2, of["-namespace"])
    if "-debug" in flags:
        params += field(3, -4)
    params += field(4, "2.3.0") + field(5, os.environ["TTRPC_ADDRESS"]) + field(6, of["-address"])
    params += field(7, of["-publish-binary"])
    if options:
        params += field(8, field(1, options))
    params += field(9, "/run/containerd/s")
    # Both outputs are read as one, and white space at its ends is taken away.
    ran = subprocess.run([SHIM, *flags], input=params, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if ran.returncode != 0:
        sys.stdout.buffer.write(ran.stdout)
        sys.exit(ran.returncode)
    result = fields(ran.stdout.strip())
    print(json.dumps({"version": result[1], "address": result[2], "protocol": result[3]}))


if sys.argv[-1] == "start":
    start(sys.argv[1:])
else:
    os.execv(SHIM, [SHIM, *sys.argv[1:]])
