# What shells and system programs do: jobs, pipes, locks, shared memory, sockets, watching, terminals, tracing.
set -e
cd "$HOME"
# Jobs, in a shell that has a terminal.
script -q -c 'bash -i -c "sleep 100 & jobs; kill %1; wait %1; echo ended \$?; (sleep 0.1; exit 3) & fg; echo foreground \$?"' /dev/null </dev/null |
    tr -d '\r' | grep -e Running -e 'ended 143' -e 'foreground 3' | sed 's/ *sleep 100 &//; s/  */ /g'
# And in one that has none.
bash <<'END'
set -m
sleep 100 &
kill -STOP %1
while ! grep -q '^State:.T' /proc/$!/status; do sleep 0.01; done
echo stopped
kill -KILL %1
# The shell may still have to tell that it was stopped.
code=147
while [ $code = 147 ]; do wait -f $! && code=0 || code=$?; done
echo "job $code"
END
mkfifo pipe
echo through >pipe &
cat pipe
exec 9>lock
flock 9
flock -n lock -c true || echo "locked"
exec 9>&-
flock -n lock -c 'echo unlocked'
echo shared >/dev/shm/$$ && cat /dev/shm/$$ && rm /dev/shm/$$
ipcmk --shmem 65536 >/dev/null && ipcs -m | grep -c "$(id -un)"
ipcrm --all
timeout 0.1 sleep 10 || echo "timeout $?"
coproc_out=$(bash -c 'coproc cat; echo to >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; echo "coproc $line"')
echo "$coproc_out"
bash -c 'cat <(echo substituted)'
(ulimit -n 100; ulimit -c 0; ulimit -n)
nice -n 5 nice
taskset -p $$ >/dev/null && echo affinity
ionice -c 3 true && echo ionice
LC_ALL=C.UTF-8 python3 -c 'print("ä".upper(), len("ä"))'
xargs -P 8 -n 1 sh -c 'echo $0' <<'END' | sort | tr '\n' ' '
1 2 3 4 5 6 7 8 9
END
echo
find / -xdev -name passwd -path '*/etc/*' 2>/dev/null || true
ps -eo comm | grep -c -e sh -e ps | sed 's/.*/ps/'
df / | tail -1 | wc -l
date -d @0 -u +%Y
mktemp -d ./tmp.XXXXXX | cut -c1-6
nproc
