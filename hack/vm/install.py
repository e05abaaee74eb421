"""hack/install.sh on a machine whose engines are systemd's services: what it says to do then works, and so does the way back."""

import glob
import json
import os
import re

from cri import cri, field
from engines import Docker, docker, docker_image, podman_image
from machine import BIN, HERE, IMAGE, SHIM, call, case, clean, programs, read, same, until
from tasks import Task, ctr, ctr_image

PREFIX = "/usr/local"
DAEMON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
# As an administrator may have written it.
OWN = '{\n    "log-level": "info",\n    "labels": ["a=b"]\n}\n'


def runtimes():
    return set(json.loads(docker("info", "--format", "{{json .Runtimes}}").out))


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def script(verb):
    return call("sh", f"{HERE}/install.sh", verb, PREFIX, env={"AGENTSBX_BIN": f"{HERE}/agentsbx"})


def restart(unit):
    call("systemctl", "reset-failed", unit, code=None)
    call("systemctl", "restart", unit, limit=300)


@case
def install_and_uninstall():
    engines_own = read(CONTAINERD) + "\n"
    for path in (BIN, SHIM):
        os.unlink(path)
    write(DAEMON, OWN)
    restart("docker.service")
    same("agentsbx" in runtimes(), False)
    docker_image()
    main = call("systemctl", "show", "--value", "--property", "MainPID", "docker.service").out
    try:
        said = script("install").out
        assert "systemctl reload docker" in said, said
        with_docker(main)
        with_others()
        with_cri(engines_own)
        clean()
        script("uninstall")
        without(engines_own)
    finally:
        write(CONTAINERD, engines_own)
        programs()


def with_docker(main):
    call("systemctl", "reload", "docker.service")
    until("dockerd knows the runtime", lambda: "agentsbx" in runtimes())
    same(call("systemctl", "show", "--value", "--property", "MainPID", "docker.service").out, main, "the same dockerd")
    config = json.loads(read(DAEMON))
    same((config["log-level"], config["runtimes"]), ("info", {"agentsbx": {"path": BIN}}))
    same(docker("run", "--rm", "--runtime", "agentsbx", IMAGE, "echo", "here").out, "here\n")
    with Docker() as d:
        d.exec("echo x >/root/f; exit 3", code=3)
        same((d.show()["disposition"], d.exec("cat /root/f").out), ("committed", "x\n"))


def with_others():
    with Task(True, "--detach") as t:
        t.exec("e1", "echo x >/root/f; exit 3", code=3)
        same(t.show("e1")["disposition"], "committed")
    podman_image()
    run = ["podman", "--runtime", "agentsbx", "run", "--network", "none"]
    same(call(*run, "--rm", IMAGE, "echo", "here").out, "here\n")
    call(*run, "--detach", "--name", "installed", IMAGE, "sleep", "100000")
    try:
        call("podman", "exec", "installed", "sh", "-c", "echo x >/root/f; exit 3", code=3)
        same(call("podman", "exec", "installed", "cat", "/root/f").out, "x\n")
    finally:
        call("podman", "rm", "--force", "--time", "0", "installed", code=None)


def with_cri(engines_own):
    """A pod of the class that PREFIX/share/agentsbx tells containerd of."""
    # Debian's file names no runtimes: with what the snippet says of such.
    snippet = re.sub("^#(\\[|  )", "\\1", read(f"{PREFIX}/share/agentsbx/containerd-1.toml"), flags=re.MULTILINE)
    write(CONTAINERD, f"{engines_own}{snippet}\n")
    restart("containerd.service")
    plugins = [line.split() for line in call("ctr", "plugins", "ls").out.splitlines()]
    log = call("journalctl", "--no-pager", "--lines", "40", "--grep", "cri|level=error", "--unit", "containerd.service", code=None).out
    same([words[-1] for words in plugins if words[1:2] == ["cri"]], ["ok"], log)
    dump = call("containerd", "config", "dump").out
    assert 'runtimes.agentsbx]' in dump and 'runtime_type = "io.containerd.agentsbx.v1"' in dump, dump
    # With the configuration that it works by.
    status = cri("Status", field(1, 1)).decode(errors="replace")
    for word in ('"agentsbx":', '"runtimeType":"io.containerd.agentsbx.v1"', '"dev.agentsbx.*"'):
        assert word in status, (word, status)
    call("ctr", "--namespace", "k8s.io", "images", "import", f"{HERE}/pause.image.tar")
    pause = next(line.split('"')[1] for line in dump.splitlines() if line.strip().startswith("sandbox_image ="))
    call("ctr", "--namespace", "k8s.io", "images", "tag", "--force", "localhost/agentsbx-test/pause:latest", pause)
    # On the node's network: the machine has no plugins for others.
    node = field(2, field(1, field(1, 2)))
    metadata = field(1, field(1, "pod") + field(2, "uid-of-pod") + field(3, "default"))
    annotations = field(7, field(1, "dev.agentsbx.layer") + field(2, "hold"))
    answer = cri("RunPodSandbox", field(1, metadata + annotations + field(8, node)) + field(2, "agentsbx"))
    pod = answer[2:].decode()
    try:
        tasks = call("ctr", "--namespace", "k8s.io", "tasks", "ls").out
        assert pod in tasks and "RUNNING" in tasks, tasks
        bundle = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{pod}"
        same(json.loads(read(bundle, "config.json"))["annotations"]["dev.agentsbx.layer"], "hold")
        assert os.path.exists(f"{bundle}/shim.json"), os.listdir(bundle)
    finally:
        cri("StopPodSandbox", field(1, pod))
        cri("RemovePodSandbox", field(1, pod))
    same(glob.glob(f"/run/containerd/*/k8s.io/{pod}"), [])


def without(engines_own):
    """The engines are well, and know nothing of it."""
    same([path for path in (BIN, SHIM, f"{PREFIX}/share/agentsbx") if os.path.exists(path)], [])
    same(read(DAEMON) + "\n", OWN)
    write(CONTAINERD, engines_own)
    restart("containerd.service")
    # A reload takes runtimes only from a file that names some: this dockerd goes on to list it, and is well.
    call("systemctl", "reload", "docker.service")
    same(docker("run", "--rm", IMAGE, "echo", "well").out, "well\n")
    restart("docker.service")
    same("agentsbx" in runtimes(), False)
    same(docker("run", "--rm", IMAGE, "echo", "well").out, "well\n")
    refused = docker("run", "--rm", "--runtime", "agentsbx", IMAGE, "true", code=125)
    assert "agentsbx" in refused.err, refused
    same(ctr("run", "--rm", ctr_image(), "well", "echo", "well").out, "well\n")
    same(call("podman", "run", "--rm", "--network", "none", IMAGE, "echo", "well").out, "well\n")
    assert "agentsbx" not in call("containerd", "config", "dump").out
