"""The kernel's audit log: that it tells what rules of files refuse, where a container asks for that."""

import ctypes
import os
import re
import socket
import struct

from machine import PATIENCE, Bundle, Skipped, call, case, read, same, until

NETLINK_AUDIT, AUDIT_GET, NLMSG_ERROR, LANDLOCK_ACCESS, LANDLOCK_DOMAIN = 9, 1000, 2, 1423, 1424


def audit_is_on():
    """Whether the kernel makes records (AUDIT_GET, <linux/audit.h>: the second field is `enabled`)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_AUDIT) as kernel:
        kernel.settimeout(PATIENCE)
        kernel.send(struct.pack("=IHHII", 16, AUDIT_GET, 1, 1, 0))
        while True:
            answer = kernel.recv(65536)
            kind = struct.unpack_from("=H", answer, 4)[0]
            assert kind != NLMSG_ERROR or struct.unpack_from("=i", answer, 16)[0] == 0, answer
            if kind == AUDIT_GET:
                return struct.unpack_from("=I", answer, 20)[0] != 0


class Audit:
    """The kernel's audit records from now on, as whoever reads the log gets them: (type, text)."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_AUDIT)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind((0, 1))  # the group AUDIT_NLGRP_READLOG
        self.socket.setblocking(False)
        self.records = []

    def read(self):
        try:
            while True:
                record = self.socket.recv(65536)
                self.records.append((struct.unpack_from("=H", record, 4)[0], record[16:].decode(errors="replace").rstrip("\0")))
        except BlockingIOError:
            return self.records

    def refusals(self):
        return self.of(LANDLOCK_ACCESS)

    def of(self, wanted):
        return [text for kind, text in self.read() if kind == wanted]


@case
def refusals_are_in_the_audit_log():
    # landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION)
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 7:
        raise Skipped(f"kernel {os.uname().release} cannot log what Landlock refuses (version 7, Linux 6.15)")
    if not audit_is_on():
        raise Skipped("auditing is off (kernel parameter audit=1)")
    log = Audit()
    # The one without comes first: when the other's records are there, so would be its own.
    for name, audit in [("quiet", "false"), ("told", "true")]:
        config = f"profile = 'strict'\n[files]\naudit = {audit}\ndeny = ['/secret']\nallow-write = ['/work']\n"
        script = f"echo x >/{name}-first; cat /secret/{name}; echo done >/work/first; exec sleep 100000"
        c = Bundle(False, args=("sh", "-c", script), config=config)
        for directory in ("work", "secret"):
            os.mkdir(f"{c.dir}/rootfs/{directory}")
        for file in (f"{name}-first", f"{name}-exec", f"secret/{name}"):
            with open(f"{c.dir}/rootfs/{file}", "w") as out:
                out.write("same\n")
        with c:
            until("the first process has tried", lambda: os.path.exists(f"{c.dir}/rootfs/work/first"))
            assert "Permission denied" in read(c.dir, "out"), read(c.dir, "out")
            for refused in (f"echo x >/{name}-exec", f"mkdir /{name}-made", "cat /proc/1/environ"):
                done = c.exec(refused, code=1)
                assert "ermission denied" in done.err, done
            c.exec(f"cat /secret/{name}", code=1)
            same(c.exec(f"cat /{name}-first /{name}-exec; echo x >/work/x").out, "same\nsame\n")
    wanted = [
        r'domain=[0-9a-f]+ blockers=fs\.write_file path="/told-first"',
        r'domain=[0-9a-f]+ blockers=fs\.write_file path="/told-exec"',
        # Of what is to be made the directory is told.
        r'domain=[0-9a-f]+ blockers=fs\.make_dir path="/"',
        r"domain=[0-9a-f]+ blockers=ptrace opid=\d+",
    ]
    missing = lambda: [want for want in wanted if not any(re.search(want, text) for text in log.refusals())]  # noqa: E731
    try:
        until("all records", lambda: not missing(), 20)
    except AssertionError:
        raise AssertionError(f"no record of {missing()} in {log.refusals()}") from None
    domains = log.of(LANDLOCK_DOMAIN)
    for text in [*log.refusals(), *domains]:
        print("     record:", text)
    # With its first refusal a domain is told too: which process made it.
    for domain in {re.search(r"domain=([0-9a-f]+)", text)[1] for text in log.refusals()}:
        found = [text for text in domains if f"domain={domain} " in text]
        assert found and re.search(r"status=allocated mode=enforcing pid=\d+ uid=0 ", found[0]), (domain, domains)
    until("it is in the journal", lambda: "/told-exec" in call("journalctl", "--no-pager", f"_AUDIT_TYPE={LANDLOCK_ACCESS}", code=None).out)
    # Denied paths are mounts, of which Landlock knows nothing.
    found = [text for text in log.refusals() if "quiet" in text or "secret" in text]
    assert not found, found
    for kind in ("make_dir", "ptrace"):
        same(sum(kind in text for text in log.refusals()), 1, kind)
