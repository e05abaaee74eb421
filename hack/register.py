#!/usr/bin/env python3
"""Registers the runtime in Docker's daemon.json, or takes it out, and leaves every other key as it is.

    register.py add DAEMON.JSON BINARY
    register.py remove DAEMON.JSON
    register.py check DAEMON.JSON

The file is replaced in one step; one that is no JSON object is left alone, with an error.
"""

import json
import os
import sys
import tempfile

NAME = "agentsbx"


def load(path):
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except FileNotFoundError:
        return None
    try:
        config = json.loads(text) if text.strip() else {}
    except ValueError as e:
        sys.exit(f"{path}: {e}; nothing was changed")
    if isinstance(config, dict) and config.get("runtimes", {}) is None:
        del config["runtimes"]
    if not isinstance(config, dict) or not isinstance(config.get("runtimes", {}), dict):
        sys.exit(f"{path}: not the JSON object that dockerd reads; nothing was changed")
    return config


def replace(path, config):
    path = os.path.realpath(path)
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=".daemon.json.", dir=directory)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2, ensure_ascii=False)
            f.write("\n")
            f.flush()
            try:
                old = os.stat(path)
                os.fchmod(f.fileno(), old.st_mode & 0o7777)
                os.fchown(f.fileno(), old.st_uid, old.st_gid)
            except FileNotFoundError:
                os.fchmod(f.fileno(), 0o644)
            os.fsync(f.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def add(path, binary):
    config = load(path) or {}
    if config.get("runtimes", {}).get(NAME, {}).get("path") == binary:
        return
    config.setdefault("runtimes", {}).setdefault(NAME, {})["path"] = binary
    replace(path, config)


def remove(path):
    config = load(path)
    if config is None or NAME not in config.get("runtimes", {}):
        return
    del config["runtimes"][NAME]
    if not config["runtimes"]:
        del config["runtimes"]
    if config.get("default-runtime") == NAME:
        # dockerd does not start with a default that it does not know.
        del config["default-runtime"]
    if config:
        replace(path, config)
    else:
        os.unlink(path)


if len(sys.argv) == 4 and sys.argv[1] == "add":
    add(sys.argv[2], sys.argv[3])
elif len(sys.argv) == 3 and sys.argv[1] == "remove":
    remove(sys.argv[2])
elif len(sys.argv) == 3 and sys.argv[1] == "check":
    load(sys.argv[2])
else:
    sys.exit(__doc__)
