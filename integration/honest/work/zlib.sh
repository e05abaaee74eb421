# zlib as its authors released it: shared and static library, its own tests, and a program that links it.
set -e
mkdir "$HOME/zlib"
cd "$HOME/zlib"
tar -xf /opt/sources/zlib_*.orig.tar.* --strip-components 1
./configure --prefix="$HOME/zlib/installed" >configure.log
make -s -j4 >make.log 2>&1
make -s test 2>&1 | grep '\*\*\* zlib'
make -s install >install.log
cat >use.c <<'END'
#include <stdio.h>
#include <string.h>
#include <zlib.h>
int main(void) {
    static unsigned char in[100000], packed[100000], out[100000];
    memset(in, 'x', sizeof in);
    uLongf n = sizeof packed, m = sizeof out;
    compress(packed, &n, in, sizeof in);
    uncompress(out, &m, packed, n);
    printf("linked %d %lu\n", n < 1000 && !memcmp(in, out, sizeof in), (unsigned long)m);
}
END
gcc -O2 -Wall -Iinstalled/include use.c -Linstalled/lib -lz -Wl,-rpath,"$PWD/installed/lib" -o use
./use
cat >threads.cc <<'END'
#include <atomic>
#include <iostream>
#include <stdexcept>
#include <thread>
#include <vector>
int main() {
    std::atomic<long> sum{0};
    std::vector<std::thread> threads;
    for (int n = 0; n < 16; n++) threads.emplace_back([&sum, n] { for (int i = 0; i < 1000; i++) sum += n; });
    for (auto& thread : threads) thread.join();
    try { throw std::runtime_error("caught"); } catch (const std::exception& e) { std::cout << e.what() << ' ' << sum << '\n'; }
}
END
g++ -std=c++17 -O1 -g -fsanitize=undefined -pthread threads.cc -o threads
./threads
