#!/usr/bin/env python3
"""Registers the runtime in Docker's daemon.json, or takes it out, and leaves every other byte as it is.

    register.py add DAEMON.JSON BINARY
    register.py remove DAEMON.JSON BINARY
    register.py check DAEMON.JSON

An entry that names another program than BINARY is somebody else's: it is kept, and the path that it names printed. The file is replaced in one step; one that dockerd would not read as a JSON object is left alone, with an error. What `add`
made, with the file or in it, `remove` takes away to the byte.
"""

import json
import os
import re
import sys
import tempfile

NAME = "agentsbx"
# What JSON has between words.
BLANK = re.compile(r"[ \t\r\n]*")


def refuse(path, why):
    sys.exit(f"{path}: {why}; the file was left as it is: mend it, then try again")


def load(path):
    """Text and value; nothing and an empty object where there is no file, or no word in it."""
    try:
        with open(path, "rb") as f:
            bytes_ = f.read()
    except FileNotFoundError:
        return "", {}
    except OSError as e:
        refuse(path, e.strerror)

    def constant(word):
        raise ValueError(f"{word} is no JSON")

    try:
        text = bytes_.decode("utf-8")
        config = json.loads(text, parse_constant=constant) if text.strip() else {}
    except (ValueError, RecursionError) as e:
        refuse(path, e)
    if not isinstance(config, dict):
        refuse(path, "it is not the JSON object that dockerd reads")
    runtimes = config.get("runtimes")
    if runtimes is not None and not isinstance(runtimes, dict):
        refuse(path, 'its "runtimes" is not the JSON object that dockerd reads')
    if NAME in (runtimes or {}) and not isinstance(runtimes[NAME], dict):
        refuse(path, f'the "{NAME}" of its "runtimes" is not the JSON object that dockerd reads')
    return text, config


def replace(path, text):
    path = os.path.realpath(path)
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=".daemon.json.", dir=directory)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(text.encode("utf-8"))
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


class Members:
    """The members of the object whose brace is at `start`: name, where it begins, where its value begins and ends."""

    def __init__(self, text, start):
        decoder = json.JSONDecoder()
        self.text, self.start, self.all = text, start, []
        at = BLANK.match(text, start + 1).end()
        while text[at] != "}":
            if text[at] == ",":
                at = BLANK.match(text, at + 1).end()
            name, end = decoder.raw_decode(text, at)
            colon = BLANK.match(text, end).end()
            value = BLANK.match(text, colon + 1).end()
            _, end = decoder.raw_decode(text, value)
            self.all.append((name, at, value, end))
            at = BLANK.match(text, end).end()

    @classmethod
    def of_file(cls, text):
        return cls(text, BLANK.match(text).end())

    def of(self, name):
        """The last one of a name: it is the one that counts."""
        return next((member for member in reversed(self.all) if member[0] == name), None)

    def line(self):
        """The line break and the indentation before each member; nothing where they are on one line."""
        blank = BLANK.match(self.text, self.start + 1).group() if self.all else ""
        _, newline, indent = blank.rpartition("\n")
        return ("\r\n" if "\r\n" in blank else newline) + indent if newline else ""

    def with_last(self, name, value, step):
        """The text with one member more, written as the others are."""
        line = self.line()
        at = self.all[-1][3] if self.all else self.start + 1
        comma = "," + ("" if line else " ") if self.all else ""
        return self.text[:at] + comma + line + json.dumps(name) + ": " + dump(value, line, step) + self.text[at:]

    def without(self, name):
        """The text without the last member of a name, and its comma."""
        index = self.all.index(self.of(name))
        start, end = self.all[index][1], self.all[index][3]
        if index > 0:
            start = self.all[index - 1][3]
        elif len(self.all) > 1:
            end = self.all[1][1]
        else:
            start = self.start + 1
        return self.text[:start] + self.text[end:]


def dump(value, line, step):
    """Objects and texts as JSON, on lines of their own where `line`, the one that they begin on, is one."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = line + step if line else ""
    members = [f"{json.dumps(name)}: {dump(member, inner, step)}" for name, member in value.items()]
    return "{" + inner + ("," + (inner or " ")).join(members) + line + "}"


def fresh(binary):
    """The file where there was none."""
    return "{" + "\n  " + '"runtimes": ' + dump({NAME: {"path": binary}}, "\n  ", "  ") + "\n}\n"


def names_another(entry, binary):
    """Whether an entry is of another program; tells of which, or what the entry says instead of a path."""
    path = entry.get("path")
    if path != binary:
        print(path if isinstance(path, str) and path else json.dumps(entry))
    return path != binary


def add(path, binary):
    text, config = load(path)
    runtimes = config.get("runtimes")
    known = (runtimes or {}).get(NAME)
    if known is not None:
        names_another(known, binary)
        return
    if not text.strip():
        replace(path, fresh(binary))
        return
    top = Members.of_file(text)
    step = top.line().lstrip("\r\n") or "  "
    entry = {"path": binary}
    if runtimes is None:
        if "runtimes" in config:
            top = Members.of_file(top.without("runtimes"))
        replace(path, top.with_last("runtimes", {NAME: entry}, step))
        return
    replace(path, Members(text, top.of("runtimes")[2]).with_last(NAME, entry, step))


def remove(path, binary):
    text, config = load(path)
    runtimes = config.get("runtimes") or {}
    if NAME not in runtimes or names_another(runtimes[NAME], binary):
        return
    if text == fresh(binary):
        # A link to it is the administrator's.
        os.unlink(os.path.realpath(path))
        return
    while NAME in (json.loads(text).get("runtimes") or {}):
        top = Members.of_file(text)
        all_of_them = Members(text, top.of("runtimes")[2])
        text = top.without("runtimes") if len(all_of_them.all) == 1 else all_of_them.without(NAME)
    while json.loads(text).get("default-runtime") == NAME:
        # dockerd does not start with a default that it does not know.
        text = Members.of_file(text).without("default-runtime")
    replace(path, text)


if len(sys.argv) == 4 and sys.argv[1] == "add":
    add(sys.argv[2], sys.argv[3])
elif len(sys.argv) == 4 and sys.argv[1] == "remove":
    remove(sys.argv[2], sys.argv[3])
elif len(sys.argv) == 3 and sys.argv[1] == "check":
    load(sys.argv[2])
else:
    sys.exit(__doc__)
