"""Gives the sockets of our shims the names that the stock shim's have, for as long as they are there.

    python3 aliases.py BUNDLES ENDPOINT NAMESPACE

containerd is told by a shim where its socket is, but some of its tests compute the name: the digest of containerd's own
socket, the namespace and the pod. Ours has another one, so that two shims are never taken for each other.
"""

import glob
import hashlib
import os
import sys
import time

bundles, endpoint, namespace = sys.argv[1:]
made = set()
while True:
    for link in [link for link in made if not os.path.exists(link)]:
        os.unlink(link)
        made.remove(link)
    for path in glob.glob(f"{bundles}/{namespace}/*/address"):
        pod = os.path.basename(os.path.dirname(path))
        digest = hashlib.sha256(f"{endpoint}/{namespace}/{pod}".encode()).hexdigest()
        try:
            with open(path) as file:
                socket = file.read().removeprefix("unix://")
            link = os.path.join(os.path.dirname(socket), digest)
            os.symlink(socket, link)
        except OSError:
            # It was there already, or the pod went in this moment.
            continue
        made.add(link)
    time.sleep(0.05)
