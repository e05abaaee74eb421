"""Docker with each of its cgroup drivers, and podman with systemd's."""

import json
import os
import subprocess

from machine import BIN, CASES, CGROUPS, DISK, FIRST, HERE, IMAGE, call, case, clean, read, same, until


# ---- Docker ----------------------------------------------------------------------------------------------------------


def docker(*args, **more):
    return call("docker", *args, **more)


def docker_image():
    if IMAGE not in docker("images").out:
        docker("load", "-i", f"{HERE}/busybox.image.tar")


def dockerd(driver):
    call("python3", f"{HERE}/register.py", "add", "/etc/docker/daemon.json", BIN)
    config = json.loads(read("/etc/docker/daemon.json"))
    config.pop("exec-opts", None)
    if driver == "cgroupfs":
        config["exec-opts"] = ["native.cgroupdriver=cgroupfs"]
    with open("/etc/docker/daemon.json", "w") as file:
        json.dump(config, file)
    call("systemctl", "reset-failed", "docker.service", code=None)
    call("systemctl", "restart", "docker.service", limit=300)
    # The default: nobody has asked for it.
    same(docker("info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}}").out.strip(), f"{driver} 2")
    docker_image()


class Docker:
    """A container of Docker's, with this runtime."""

    count = 0

    def __init__(self, *flags, args=("sleep", "100000")):
        Docker.count += 1
        self.name = f"d{Docker.count}-{os.getpid()}"
        self.id = docker("run", "--detach", "--runtime", "agentsbx", "--name", self.name, *flags, IMAGE, *args).out.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        docker("rm", "--force", self.name, code=None)

    def exec(self, script, *flags, **more):
        return docker("exec", *flags, self.name, "sh", "-c", script, **more)

    def show(self):
        return json.loads(call(BIN, "show", self.id, "--json").out)


def docker_case(function):
    for driver in ("systemd", "cgroupfs"):
        CASES.append((f"docker_{driver}_{function.__name__}", lambda driver=driver: function(driver)))
    return function


@docker_case
def run_and_exec(driver):
    with Docker("--memory", "64m", "--pids-limit", "64") as d:
        pid = docker("inspect", "--format", "{{.State.Pid}}", d.name).out.strip()
        cgroup = read("/proc", pid, "cgroup").split("::")[1]
        own = f"/system.slice/docker-{d.id}.scope" if driver == "systemd" else f"/docker/{d.id}"
        same(cgroup, f"{own}/{FIRST}")
        d.exec("echo x >/root/f; exit 3", code=3)
        result = d.show()
        same((result["disposition"], result["end"]["code"], result["summary"]["added"]), ("committed", 3, 1))
        same(d.exec("cat /root/f").out, "x\n")
        same(d.exec("grep -E '^Seccomp:' /proc/self/status").out.split(), ["Seccomp:", "2"])
        d.exec(f"mknod /tmp/disk b {DISK} 0 && head -c 1 /tmp/disk", code=1)
        d.exec("x=$(head -c 200m /dev/zero | tr '\\0' x)", code=137)
        same(d.show()["end"]["kind"], "oom")
        d.exec("sleep 3000 & true")
        same(d.show()["survivorsKilled"], 1)
        same("mounted" in d.exec("ping -c 1 -W 1 127.0.0.1 >/dev/null && echo mounted").out, True)


@docker_case
def stop_restart_pause_update_stats_top(driver):
    with Docker("--memory", "64m", "--memory-swap", "64m", "--stop-timeout", "2", args=("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done")) as d:
        pid = docker("inspect", "--format", "{{.State.Pid}}", d.name).out.strip()
        directory = CGROUPS + os.path.dirname(read("/proc", pid, "cgroup").split("::")[1])
        docker("update", "--memory", "100m", "--memory-swap", "100m", "--pids-limit", "77", "--cpus", "0.5", d.name)
        for _ in range(2):
            same((read(directory, "memory.max"), read(directory, "pids.max")), (str(100 << 20), "77"))
            same(read(directory, "cpu.max"), "50000 100000")
            same((read(directory, FIRST, "memory.max"), read(directory, FIRST, "pids.max")), (str(100 << 20), "77"), "mirrored")
            call("systemctl", "daemon-reload")
        docker("pause", d.name)
        same(docker("inspect", "--format", "{{.State.Status}}", d.name).out.strip(), "paused")
        docker("unpause", d.name)
        job = subprocess.Popen(["docker", "exec", d.name, "sh", "-c", "sleep 1000 & sleep 1000 & wait"])
        until("the exec runs", lambda: sum(line.endswith(" sleep 1000") for line in docker("top", d.name).out.splitlines()) == 2)
        stats = docker("stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", d.name).out
        # Execs count: what is looked at is the container's group, not the first process's.
        assert "100MiB" in stats and int(stats.split()[-1]) >= 4, stats
        job.kill()
        job.wait()
        assert "sleep" in docker("top", d.name).out
        docker("stop", d.name)
        same(docker("inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", d.name).out.strip(), "0 false")
        docker("start", d.name)
        docker("restart", d.name)
        d.exec("true")
        docker("kill", d.name)
        until("killed", lambda: docker("inspect", "--format", "{{.State.ExitCode}}", d.name).out.strip() == "137")


@docker_case
def terminals(driver):
    script = "docker run --rm -it --runtime agentsbx IMAGE sh -c 'tty; stty size; exit 4'".replace("IMAGE", IMAGE)
    done = call("script", "-qec", script, "/dev/null", code=4)
    assert "/dev/pts/0" in done.out, done
    with Docker() as d:
        done = call("script", "-qec", f"docker exec -it {d.name} sh -c 'tty; exit 6'", "/dev/null", code=6)
        assert "/dev/pts/" in done.out, done


@docker_case
def out_of_memory_is_told(driver):
    with Docker("--memory", "16m", "--memory-swap", "16m", args=("sh", "-c", "x=$(head -c 200m /dev/zero | tr '\\0' x); exit 3")) as d:
        same(docker("wait", d.name).out.strip() in ("3", "137"), True)
        until("told", lambda: docker("inspect", "--format", "{{.State.OOMKilled}}", d.name).out.strip() == "true", 10)


@docker_case
def read_only_and_tmpfs(driver):
    with Docker("--read-only", "--tmpfs", "/tmp", "--shm-size", "1m", "--ulimit", "nofile=100") as d:
        d.exec("touch /x", code=1)
        d.exec("touch /tmp/x")
        same(d.exec("ulimit -n").out.strip(), "100")


@docker_case
def a_daemon_restart_keeps_containers_killable(driver):
    with Docker() as d:
        call("systemctl", "kill", "--signal", "KILL", "docker.service")
        call("systemctl", "reset-failed", "docker.service", code=None)
        call("systemctl", "restart", "docker.service", limit=300)
        docker("rm", "--force", d.name)


@docker_case
def leaves_nothing(driver):
    clean()


# ---- podman ----------------------------------------------------------------------------------------------------------


def podman_image():
    if "agentsbx-test" not in call("podman", "images").out:
        call("podman", "load", "-i", f"{HERE}/busybox.image.tar", limit=300)


@case
def podman_with_systemd():
    podman = ["podman", "--runtime", BIN, "--cgroup-manager", "systemd"]
    podman_image()
    call(*podman, "run", "--detach", "--name", "p1", "--network", "none", "--memory", "64m", IMAGE, "sleep", "100000")
    try:
        call(*podman, "exec", "p1", "sh", "-c", "echo x >/root/f; exit 3", code=3)
        same(call(*podman, "exec", "p1", "cat", "/root/f").out, "x\n")
        call(*podman, "stop", "--time", "1", "p1")
        call(*podman, "start", "p1")
        call(*podman, "exec", "p1", "true")
    finally:
        call(*podman, "rm", "--force", "--time", "0", "p1", code=None)
    clean()
