# A debugger on a child of its own.
set -e
cd "$HOME"
printf 'int g = 41;\nint main(void) { g++; return g == 42 ? 0 : 1; }\n' >traced.c
gcc -g -O0 traced.c -o traced
strace -f -o strace.log ./traced
grep -c '^[0-9]* *execve' strace.log
gdb -q -batch -iex 'set debuginfod enabled off' -ex 'break main' -ex run -ex next -ex 'print g' -ex continue ./traced 2>&1 | grep -e '^\$1' -e 'exited'
