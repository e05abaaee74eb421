"""What test suites do: processes, threads, sockets on the local host, temporary files, signals, shared memory."""

import asyncio
import concurrent.futures
import ctypes
import fcntl
import http.server
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import pytest


def square(n):
    return n * n


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes(method):
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert pool.map(square, range(20)) == [n * n for n in range(20)]


def put(queue, lock, value, name):
    with lock:
        value.value += 1
    memory = multiprocessing.shared_memory.SharedMemory(name)
    memory.buf[0] = 7
    memory.close()
    queue.put("done")


def test_queue_lock_value_and_shared_memory():
    queue, lock, value = multiprocessing.Queue(), multiprocessing.Lock(), multiprocessing.Value("i", 0)
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    workers = [multiprocessing.Process(target=put, args=(queue, lock, value, memory.name)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [queue.get(timeout=20) for _ in workers] == ["done"] * 4
    for worker in workers:
        worker.join()
    assert value.value == 4 and memory.buf[0] == 7
    memory.close()
    memory.unlink()


def test_a_process_pool_and_a_manager():
    with concurrent.futures.ProcessPoolExecutor(2) as pool, multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["sum"] = sum(pool.map(square, range(50)))
        assert shared["sum"] == 40425


def test_threads():
    total, lock = [0], threading.Lock()

    def add():
        for _ in range(1000):
            with lock:
                total[0] += 1

    threads = [threading.Thread(target=add) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [50_000]


def test_tmp_path(tmp_path):
    (tmp_path / "a").write_text("x")
    os.replace(tmp_path / "a", tmp_path / "b")
    os.link(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").stat().st_nlink == 2
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        file.write(b"unnamed")
        assert os.fstat(file.fileno()).st_nlink == 0


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello " + self.path.encode())

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_http_on_the_local_host(host):
    server = http.server.ThreadingHTTPServer((host, 0), Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://{host}:{server.server_port}/x", timeout=20) as answer:
        assert answer.read() == b"hello /x"
    server.shutdown()
    server.server_close()


def test_udp_and_sendfile_and_socketpair(tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two:
        two.bind(("127.0.0.1", 0))
        one.sendto(b"datagram", two.getsockname())
        assert two.recvfrom(100)[0] == b"datagram"
    left, right = socket.socketpair()
    (tmp_path / "f").write_bytes(b"z" * 5000)
    with open(tmp_path / "f", "rb") as file:
        assert left.sendfile(file) == 5000
    # Descriptors go through it too.
    socket.send_fds(left, [b"fd"], [left.fileno()])


def test_unix_socket_with_credentials(tmp_path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(tmp_path / "s"))
    peer, _ = server.accept()
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    assert int.from_bytes(credentials[4:8], "little") == os.getuid()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0abstract-{os.getpid()}")


def test_asyncio():
    async def talk():
        async def answer(reader, writer):
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"quiet\n")
        line = await reader.readline()
        child = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
        return line, (await child.communicate())[0]

    assert asyncio.run(talk()) == (b"QUIET\n", b"child\n")


def test_signals_and_timers():
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.pause()
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM
    pidfd = os.pidfd_open(os.getpid())
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
    signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
    assert seen == ["alarm", "usr1"]


def test_locks_between_processes(tmp_path):
    path = tmp_path / "lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = subprocess.run(["flock", "-n", path, "true"]).returncode
        fcntl.flock(file, fcntl.LOCK_UN)
        free = subprocess.run(["flock", "-n", path, "true"]).returncode
        fcntl.lockf(file, fcntl.LOCK_EX)
    assert (busy, free) == (1, 0)


def test_machine_code_written_at_run_time():
    """What every just-in-time compiler does."""
    import platform

    code = {
        "x86_64": bytes.fromhex("b82a000000c3"),  # mov eax, 42; ret
        "aarch64": bytes.fromhex("40058052c0035fd6"),
    }[platform.machine()]
    # Writable and executable at once.
    both = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    both.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(both))
    libc = ctypes.CDLL(None, use_errno=True)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 42
    # First the one, then the other.
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert libc.mprotect(ctypes.c_void_p(address), 4096, 5) == 0, os.strerror(ctypes.get_errno())
    assert ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 42


def test_memfd_and_eventfd_and_epoll():
    fd = os.memfd_create("name", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"contents")
    fcntl.fcntl(fd, 1033, 1 | 2 | 4 | 8)  # F_ADD_SEALS
    with pytest.raises(PermissionError):
        os.write(fd, b"more")
    event = os.eventfd(0)
    poll = select.epoll()
    poll.register(event, select.EPOLLIN)
    os.eventfd_write(event, 3)
    assert poll.poll(5) == [(event, select.EPOLLIN)] and os.eventfd_read(event) == 3


def test_inotify(tmp_path):
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(0)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    assert libc.inotify_add_watch(fd, os.fsencode(tmp_path), 0x100) > 0, os.strerror(ctypes.get_errno())
    (tmp_path / "made").touch()
    assert select.select([fd], [], [], 20)[0] and b"made" in os.read(fd, 4096)


def test_a_terminal():
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "tty; stty size"])
    output = b""
    try:
        while chunk := os.read(master, 1000):
            output += chunk
    except OSError:
        pass
    assert b"/dev/pts/" in output and b"0 0" in output and os.waitpid(pid, 0)[1] == 0


def test_many_files_of_a_directory(tmp_path):
    for n in range(500):
        (tmp_path / f"f{n}").write_text(str(n))
    assert sum(int(entry.read_text()) for entry in tmp_path.iterdir()) == 124750
    assert len(list(os.scandir(tmp_path))) == 500


def test_scheduling():
    assert len(os.sched_getaffinity(0)) >= 1
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1)
    os.sched_yield()
    assert time.clock_gettime(time.CLOCK_MONOTONIC) > 0 and os.cpu_count() >= 1


def test_memory_of_a_gigabyte():
    with mmap.mmap(-1, 1 << 30) as memory:
        for at in range(0, 1 << 30, 1 << 12):
            memory[at] = 1
        memory.madvise(mmap.MADV_DONTNEED)


def test_proc_and_limits():
    import resource

    with open("/proc/self/status") as file:
        assert f"Pid:\t{os.getpid()}" in file.read()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert os.getloadavg()[0] >= 0 and os.statvfs("/").f_bsize > 0


def test_extended_attributes_and_times(tmp_path):
    path = tmp_path / "f"
    path.touch()
    os.setxattr(path, "user.key", b"value")
    os.utime(path, ns=(1, 2))
    os.posix_fallocate(os.open(path, os.O_WRONLY), 0, 1 << 20)
    assert os.getxattr(path, "user.key") == b"value" and path.stat().st_size == 1 << 20


def test_random_and_secrets():
    assert len(os.getrandom(16)) == 16 and os.urandom(8) != os.urandom(8)
