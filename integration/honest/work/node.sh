# A script with worker threads, child processes, a cluster, a server and its client, file watching and compression.
set -e
cd "$HOME"
node /srv/work/node.js
node --test /srv/work/node.test.js >tests.tap
grep '^# pass' tests.tap
