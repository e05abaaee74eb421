"""Tries what each capability of root in a container is for, and prints which of them it has."""

import os
import signal
import socket
import struct
import sys

USER = 1000


def attempt(name, act):
    try:
        act()
        print(name, "works")
    except OSError as error:
        print(name, error.strerror)


def of_user(path, mode):
    """A file of the user's, made by the user."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit("the user could not make a file: no CAP_SETUID or CAP_SETGID")
    return path


def in_child(act):
    """Runs it in a child and hands on how it failed."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def chown():
    open("mine", "w").close()
    os.chown("mine", USER, USER)


def keep_setuid():
    """A setgid bit for a group that root is not a member of."""
    os.setgroups([])
    os.chown("mine", 0, 4321)
    os.chmod("mine", 0o2755)
    if not os.stat("mine").st_mode & 0o2000:
        raise OSError(1, "the bit was taken")


def bind():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 80))
        server.listen()


def kill():
    pid = os.fork()
    if pid == 0:
        os.setresuid(USER, USER, USER)
        signal.pause()
    # Until it is the user's.
    while os.stat(f"/proc/{pid}").st_uid == 0:
        pass
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)


# A capability set of revision 2, as setcap(8) writes it: CAP_NET_BIND_SERVICE, permitted and effective.
FILE_CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)

os.chdir("/root")
attempt("CHOWN", chown)
attempt("FSETID", keep_setuid)
attempt("SETFCAP", lambda: os.setxattr("mine", "security.capability", FILE_CAPABILITY))
attempt("NET_BIND_SERVICE", bind)
attempt("SETGID", lambda: in_child(lambda: os.setresgid(USER, USER, USER)))
attempt("SETUID", lambda: in_child(lambda: os.setresuid(USER, USER, USER)))
if "SETUID" not in sys.argv:
    path = of_user("/home/user/private", 0o600)
    attempt("FOWNER", lambda: os.chmod(path, 0o400))
    attempt("DAC_OVERRIDE", lambda: os.close(os.open(path, os.O_RDWR)))
    attempt("KILL", kill)
for name, act in {
    "MKNOD": lambda: os.mknod("device", 0o20600, os.makedev(1, 3)),
    "NET_RAW": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "SYS_ADMIN": lambda: os.setxattr("mine", "trusted.key", b"value"),
    "SYS_CHROOT": lambda: in_child(lambda: os.chroot("/")),
    "SYS_NICE": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
}.items():
    attempt(name, act)
