#!/usr/bin/env python3
"""What hack/vm.sh runs in the machine: the runtime and its containerd shim with systemd, cgroup v2, the real dockerd and
containerd, on Debian 12's kernel 6.1 or a newer one.

    smoke.py [NAME...]      all cases, or those whose name has a NAME in it

Prints a line for each case and at the end `N passed, N failed`, with `, N skipped` where the kernel lacks what some are
about. A case is a function; what it leaves behind is the next one's problem, so the last of each group looks for it.
"""

import os
import shutil
import sys
import time
import traceback

# Importing them is what makes their cases known, in this order.
import bundles  # noqa: F401
import audit  # noqa: F401
import tasks  # noqa: F401
import engines
import install  # noqa: F401
from machine import CASES, CONFIG, WORK, Skipped, programs


def main(names):
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    # The engines' own configurations, as they are; cases of the strict profile say so.
    os.makedirs(os.path.dirname(CONFIG), exist_ok=True)
    with open(CONFIG, "w") as file:
        file.write("profile = 'oci'\n")
    programs()
    wanted = [(name, function) for name, function in CASES if not names or any(n in name for n in names)]
    # All of one driver's together: the daemon is restarted between.
    order = {"docker_systemd": 1, "docker_cgroupfs": 2, "podman": 3, "install": 4}
    wanted.sort(key=lambda c: next((n for prefix, n in order.items() if c[0].startswith(prefix)), 0))
    daemon, passed, failed, skipped = None, 0, [], 0
    for name, function in wanted:
        begun = time.monotonic()
        try:
            if name.startswith("docker_") and name.split("_")[1] != daemon:
                daemon = name.split("_")[1]
                engines.dockerd(daemon)
            function()
        except Skipped as why:
            skipped += 1
            print(f"skip {name}: {why}", flush=True)
        except Exception as err:  # noqa: BLE001 - one case's failure is not the next one's
            failed.append(name)
            where = traceback.extract_tb(err.__traceback__)
            line = next((f.lineno for f in where if f.name not in ("main", "<lambda>", "call", "same")), 0)
            text = str(err) if isinstance(err, AssertionError) else f"{type(err).__name__}: {err}"
            print(f"FAIL {name} ({time.monotonic() - begun:.1f} s) line {line}: {text}", flush=True)
        else:
            passed += 1
            print(f"ok   {name} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {len(failed)} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
