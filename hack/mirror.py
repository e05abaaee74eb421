"""Prints the Debian mirror that this machine installs the named suite from (by default its own).

    python3 hack/mirror.py [SUITE]

Whoever builds an image here can reach that one, so no script needs to name a mirror. A suite that the machine does not
install from is looked for where its own comes from: mirrors have them all.
"""

import glob
import re
import sys


def own_suite():
    with open("/etc/os-release") as file:
        return dict(line.rstrip().split("=", 1) for line in file if "=" in line)["VERSION_CODENAME"].strip('"')


def find(suite):
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        for line in text.splitlines():
            found = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s", line)
            if found and found.group(2) == suite:
                return found.group(1)
        for stanza in re.split(r"\n\s*\n", text):
            field = dict(re.findall(r"(?m)^([A-Za-z-]+):[ \t]*(.*)$", stanza))
            if suite in field.get("Suites", "").split() and "deb" in field.get("Types", "").split():
                return field["URIs"].split()[0]
    return None


own = own_suite()
suite = sys.argv[1] if len(sys.argv) > 1 else own
print(find(suite) or find(own) or sys.exit(f"no mirror for {suite} or {own} in /etc/apt/sources.list*"))
